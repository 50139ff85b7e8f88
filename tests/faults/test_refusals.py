"""What does not fit ends the server at start, with one line that says why."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tessera.launching.command import command, environment
from tessera.versions import installed
from tessera_patches.core import lock
from tessera_testing.drafts import chain, drafting
from tessera_testing.free_port import free_port
from tessera_testing.marks import absent, needs, only_in_full
from tessera_testing.refusal import Refusal, expect_refusal
from tessera_testing.starts import STAGES_ON_CPUS
from tessera_testing.tiny import TINY

HIDDEN = "--enable-return-hidden-states"
FAULTS = {
    "version": f"SGLang 0.5.99 is not supported (supported: {', '.join(lock.supported_versions())})",
    "seam": "model_runner.ModelRunner.forward: parameters was",
    "taken": "another plugin has already patched sglang.srt.server_args.ServerArgs.add_cli_args",
    "bug": "tessera: refusing to start: 'NoneType' object is not callable",
}


class Unsupported(NamedTuple):
    """Options beside --tile-spec, and the lines with which the start must end."""

    options: tuple[str, ...]
    env: dict[str, str]
    lines: tuple[str, ...]


NEEDS = "--tile-spec needs --speculative-algorithm EAGLE, EAGLE3, STANDALONE; got"
NOT_WITH = "cannot be combined with --tile-spec:"
UNSUPPORTED = {
    "no drafts": Unsupported((), {}, (f"{NEEDS} nothing",)),
    "ngram": Unsupported(
        ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"), {}, (f"{NEEDS} NGRAM",)
    ),
    "several": Unsupported(
        (
            *("--speculative-algorithm", "EAGLE", *chain(3)),
            # With torch_native, SGLang itself refuses deterministic inference, before we are asked.
            *("--attention-backend", "triton", "--enable-deterministic-inference"),
            *("--speculative-adaptive", "--dp-size", "2", "--tile-spec-trace", "never-written.jsonl"),
        ),
        {"SGLANG_SIMULATE_ACC_LEN": "2"},
        (
            f"--speculative-adaptive {NOT_WITH} --tile-spec takes its place",
            f"--enable-deterministic-inference {NOT_WITH} what is verified depends on the load",
            f"SGLANG_SIMULATE_ACC_LEN {NOT_WITH} --tile-spec accepts tokens itself, and simulates nothing",
            "--tile-spec-trace records one scheduler, and --dp-size above 1 starts several",
        ),
    ),
}


class UnsupportedModel(NamedTuple):
    """What its configuration has, options, and the lines with which the start must end."""

    config: dict[str, Any]
    options: tuple[str, ...]
    lines: tuple[str, ...]


STATE = "Mamba or linear-attention state"
WRONG = "some vectors are wrong (SGLang <0.5.23; 0.5.23 serves it)"
STATE_NOT = f"cannot be combined with {HIDDEN} where a model has {STATE}: {WRONG}"
SIZED = () if absent("tilespec") else ("--tile-spec", *drafting("STANDALONE", chain(3)))
NO_BUFFER = "--mamba-scheduler-strategy" if installed() == "0.5.17" else "--mamba-radix-cache-strategy"
MODELS = {
    "mamba": UnsupportedModel(
        {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1"},
        # Without the first two, SGLang itself refuses to start on a CPU, before we are asked.
        (NO_BUFFER, "no_buffer", "--disable-overlap-schedule", HIDDEN, *SIZED),
        (
            *(f"{option} does not support this model yet: it has {STATE}" for option in SIZED[:1]),
            *(f"--speculative-algorithm {STATE_NOT}" for _ in SIZED[:1] if installed() == "0.5.17"),
        ),
    ),
}


@pytest.fixture(scope="module")
def logs(refusal: Refusal) -> dict[str, str]:
    """The log of each server that starts broken; two start at a time."""
    with ThreadPoolExecutor(2) as threads:
        logs = threads.map(lambda fault: refusal(TINY, HIDDEN, env={"TESSERA_TEST_FAULT": fault}), FAULTS)
        return dict(zip(FAULTS, logs, strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_start_is_refused(logs: dict[str, str], fault: str) -> None:
    """Wherever it shows, in the main process or in the scheduler, the whole server ends and says why."""
    assert "tessera: refusing to start:" in logs[fault]
    assert FAULTS[fault] in logs[fault]


def test_an_unsupported_option_is_refused_by_name(refusal: Refusal) -> None:
    """By the launcher; that every option is, and how, is tested without it."""
    log = refusal(TINY, HIDDEN, "--is-embedding")
    assert f"tessera: refusing to start: --is-embedding cannot be combined with {HIDDEN}: " in log


def test_an_option_that_nobody_has_classified_is_refused_by_name(refusal: Refusal) -> None:
    """As soon as it has another value than its default."""
    log = refusal(TINY, HIDDEN, "--stream-interval", "2", env={"TESSERA_TEST_FAULT": "unclassified"})
    why = "nobody has looked at what it does there"
    assert f"tessera: refusing to start: --stream-interval cannot be combined with {HIDDEN}: {why}" in log.splitlines()


def weightless(folder: Path, **changes: Any) -> Path:
    """The tiny model without its weights, and a configuration with changes: a server that loads it ends otherwise."""
    for file in TINY.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.fixture(scope="module")
def sized_logs(refusal: Refusal, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines that each server with something unsupported beside --tile-spec leaves; two start at a time."""
    model = weightless(tmp_path_factory.mktemp("weightless"))

    def start(case: Unsupported) -> list[str]:
        drafts = ("--speculative-draft-model-path", str(model)) if "EAGLE" in case.options else ()
        return refusal(model, "--tile-spec", *case.options, *drafts, env=case.env).splitlines()

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(UNSUPPORTED, threads.map(start, UNSUPPORTED.values()), strict=True))


@needs("tilespec")
@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_does_not_go_with_tile_spec_ends_the_start(sized_logs: dict[str, list[str]], case: str) -> None:
    """One line for each option or variable, and nothing behind them; no traceback, and the model is not loaded."""
    lines, log = UNSUPPORTED[case].lines, sized_logs[case]
    assert log[-len(lines) :] == [f"tessera: refusing to start: {line}" for line in lines]
    assert sum("refusing to start" in line for line in log) == len(lines)
    assert [line for line in log if "Traceback" in line] == []


@pytest.fixture(scope="module")
def model_logs(refusal: Refusal, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines that each server of an unsupported model leaves; two start at a time."""

    def start(case: UnsupportedModel) -> list[str]:
        model = weightless(tmp_path_factory.mktemp("model"), **case.config)
        return refusal(model, *case.options).splitlines()

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(MODELS, threads.map(start, MODELS.values()), strict=True))


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_does_not_go_with_an_option_ends_the_start(model_logs: dict[str, list[str]], case: str) -> None:
    """By its configuration, before its weights are looked for; one line for each option."""
    lines, log = MODELS[case].lines, model_logs[case]
    assert log[-len(lines) :] == [f"tessera: refusing to start: {line}" for line in lines]
    assert [line for line in log if "Traceback" in line] == []


@pytest.mark.full
def test_a_model_that_computes_from_its_ids_is_refused_with_injection(refusal: Refusal) -> None:
    """By its name, before it serves: its rows, and the prefixes that it caches, would be another prompt's."""
    log = refusal(TINY, "--enable-injection", env={"TESSERA_TEST_FAULT": "ids-again"})
    assert "refusing to start: --enable-injection does not support LlamaForCausalLM: rows of the same embeddings" in log


@needs("tilespec")
@pytest.mark.parametrize("replicas", ["1", *only_in_full("2")])
def test_a_scheduler_that_cannot_serve_ends_the_start(refusal: Refusal, replicas: str) -> None:
    """Whoever waits for it: the launcher, or the controller of several.

    That one is started as users start it: in whole runs, a forked controller waited on for its schedulers.
    """
    start = refusal if replicas == "1" else expect_refusal
    options = "--tile-spec", *drafting("STANDALONE", chain(3)), "--dp-size", replicas
    env = STAGES_ON_CPUS if replicas == "2" else {}
    log = start(TINY, *options, env={"TESSERA_TEST_FAULT": "unmeasured", **env})
    assert "tessera: refusing to start: --tile-spec: measuring steps failed: out of luck" in log


def serve(model: Path, *options: str) -> str:
    """What ``sglang serve`` writes, which must fail."""
    line = [str(Path(sys.executable).with_name("sglang")), "serve", *command(model, free_port(), options)[3:]]
    run = subprocess.run(line, env=environment({}), capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode != 0
    return run.stdout + run.stderr


def test_what_only_a_loaded_model_shows_ends_the_start(refusal: Refusal) -> None:
    """At once, and with our status: SGLang finds no scheduler dead that it would report as crashed."""
    log = refusal(TINY, HIDDEN, "--embeddings-dimensions", "257")
    assert "tessera: refusing to start: --embeddings-dimensions 257 is above 256, this model's" in log.splitlines()
    assert "crashed" not in log


@pytest.mark.full
def test_sglangs_other_launcher_loads_us_too() -> None:
    """``sglang serve``: the same plugins, so the same refusal."""
    log = serve(TINY, HIDDEN, "--is-embedding")
    assert f"tessera: refusing to start: --is-embedding cannot be combined with {HIDDEN}: " in log


@pytest.mark.parametrize("start", [expect_refusal, pytest.param(serve, marks=pytest.mark.full)])
def test_a_model_that_is_not_there_is_one_line(start: Callable[..., str], tmp_path: Path) -> None:
    """Of both launchers, with the option's name, and no traceback."""
    log = start(tmp_path / "no-such-model", HIDDEN)
    assert f"tessera: refusing to start: --model-path {tmp_path}/no-such-model: no such file or folder" in log
    assert "Traceback" not in log
