"""What does not fit ends the server at start, with one line that says why."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tessera.testing.drafts import chain
from tessera.testing.launch import command, environment, free_port
from tessera.testing.server import expect_refusal
from tessera.testing.tiny import TINY

HIDDEN = "--enable-return-hidden-states"
FAULTS = {
    "version": "SGLang 0.5.99 is not supported (supported: 0.5.17)",
    "seam": "model_runner.ModelRunner.forward: parameters was",
    "taken": "another plugin has already patched sglang.srt.server_args.ServerArgs.__post_init__",
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
            *("--speculative-adaptive", "--tp-size", "2"),
        ),
        {"SGLANG_SIMULATE_ACC_LEN": "2"},
        (
            f"--speculative-adaptive {NOT_WITH} it chooses the number of steps itself",
            f"--enable-deterministic-inference {NOT_WITH} what is verified depends on the load",
            f"--tp-size above 1 {NOT_WITH} ranks could decide differently",
            f"SGLANG_SIMULATE_ACC_LEN {NOT_WITH} it accepts tokens that were not verified",
        ),
    ),
}


@pytest.fixture(scope="module")
def logs() -> dict[str, str]:
    """The log of each server that starts broken; two start at a time."""
    with ThreadPoolExecutor(2) as threads:
        logs = threads.map(lambda fault: expect_refusal(TINY, HIDDEN, env={"TESSERA_TEST_FAULT": fault}), FAULTS)
        return dict(zip(FAULTS, logs, strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_start_is_refused(logs: dict[str, str], fault: str) -> None:
    """Wherever it shows, in the main process or in the scheduler, the whole server ends and says why."""
    assert "tessera: refusing to start:" in logs[fault]
    assert FAULTS[fault] in logs[fault]


def test_an_unsupported_option_is_refused_by_name() -> None:
    """By the real launcher; that every option is, and how, is tested without it."""
    log = expect_refusal(TINY, HIDDEN, "--is-embedding")
    assert f"tessera: refusing to start: --is-embedding cannot be combined with {HIDDEN}: " in log


@pytest.fixture(scope="module")
def weightless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without its weights: a server that loads it ends with another error."""
    folder = tmp_path_factory.mktemp("weightless")
    for file in TINY.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def sized_logs(weightless: Path) -> dict[str, list[str]]:
    """The lines that each server with something unsupported beside --tile-spec leaves; two start at a time."""

    def start(case: Unsupported) -> list[str]:
        drafts = ("--speculative-draft-model-path", str(weightless)) if "EAGLE" in case.options else ()
        return expect_refusal(weightless, "--tile-spec", *case.options, *drafts, env=case.env).splitlines()

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(UNSUPPORTED, threads.map(start, UNSUPPORTED.values()), strict=True))


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_does_not_go_with_tile_spec_ends_the_start(sized_logs: dict[str, list[str]], case: str) -> None:
    """One line for each option or variable, and nothing behind them; no traceback, and the model is not loaded."""
    lines, log = UNSUPPORTED[case].lines, sized_logs[case]
    assert log[-len(lines) :] == [f"tessera: refusing to start: {line}" for line in lines]
    assert sum("refusing to start" in line for line in log) == len(lines)
    assert [line for line in log if "Traceback" in line] == []


def test_sglangs_other_launcher_loads_us_too() -> None:
    """``sglang serve``: the same plugins, so the same refusal."""
    serve = [str(Path(sys.executable).with_name("sglang")), "serve", *command(TINY, free_port(), (HIDDEN,))[3:]]
    run = subprocess.run(
        [*serve, "--is-embedding"], env=environment({}), capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode != 0
    assert f"tessera: refusing to start: --is-embedding cannot be combined with {HIDDEN}: " in run.stdout + run.stderr
