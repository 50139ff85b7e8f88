"""What does not fit ends the server at start, with one line that says why."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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


def test_sglangs_other_launcher_loads_us_too() -> None:
    """``sglang serve``: the same plugins, so the same refusal."""
    serve = [str(Path(sys.executable).with_name("sglang")), "serve", *command(TINY, free_port(), (HIDDEN,))[3:]]
    run = subprocess.run(
        [*serve, "--is-embedding"], env=environment({}), capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode != 0
    assert f"tessera: refusing to start: --is-embedding cannot be combined with {HIDDEN}: " in run.stdout + run.stderr
