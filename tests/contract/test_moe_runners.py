"""What we say about SGLang's MoE runners, held against the installed SGLang."""

from __future__ import annotations

import ast
import inspect
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.server_args import ServerArgs

from tessera.tilespec import cache
from tessera.versions import installed
from tessera_patches.core import source
from tessera_patches.tilespec.start import facts

ROOT = Path(__file__).parents[2]
RUNNERS: list[dict[str, Any]] = tomllib.loads((ROOT / "docs/reference/moe_runners.toml").read_text())["runner"]


of_the_page = pytest.mark.skipif(installed() != "0.5.17", reason="the page of runners is about SGLang 0.5.17")


def assigned(module: Path, name: str) -> Any:
    """The literal that a module assigns to a name."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{module} assigns no {name}")


@of_the_page
def test_every_runner_has_its_entry() -> None:
    """Each value of the enum, and no other; and which of them the option takes."""
    enum = source.find("sglang.srt.layers.moe.utils.MoeRunnerBackend")
    values = [ast.literal_eval(node.value) for node in enum.body if isinstance(node, ast.Assign)]
    assert sorted(runner["name"] for runner in RUNNERS) == sorted(values)
    import sglang

    choices = assigned(Path(sglang.__path__[0]) / "srt/server_args.py", "MOE_RUNNER_BACKEND_CHOICES")
    assert {runner["name"] for runner in RUNNERS if runner["option"]} == set(choices)


@of_the_page
@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner["name"])
def test_what_an_entry_names_exists(runner: dict[str, Any]) -> None:
    """The function or class that decides or runs it; and every field is filled."""
    source.find(runner["source"])
    fields = ("what", "hardware", "parallelism", "quantization", "state", "measured")
    assert all(runner[field].strip() for field in fields)
    assert set(runner) == {"name", "option", "source", *fields}


def test_the_facts_of_a_profile_are_fields() -> None:
    """One that was renamed would be None for every server, and profiles of different servers would be mixed up."""
    gone = {"torchao_config"} if installed() != "0.5.17" else set()
    assert set(facts._OPTIONS) - gone <= set(inspect.signature(ServerArgs).parameters)


@pytest.mark.parametrize("option", ["moe_runner_backend", "speculative_moe_runner_backend"])
def test_another_runner_is_another_profile(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the target, and of the draft alone."""
    device = SimpleNamespace(name="some GPU", multi_processor_count=132, total_memory=1, uuid="none")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    plain: dict[str, object] = dict.fromkeys(facts._OPTIONS, "triton")
    plain |= {"model_path": "target", "speculative_draft_model_path": "draft"}
    plain |= {"speculative_num_steps": 1, "speculative_eagle_topk": 1}

    def key(args: dict[str, object]) -> str:
        return cache.key(facts.facts(SimpleNamespace(**args), [0, 1], [1], []))

    assert key(plain) != key(plain | {option: "flashinfer_cutlass"})
