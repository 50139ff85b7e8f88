"""What does not fit ends the server at start, with one line that says why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

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
