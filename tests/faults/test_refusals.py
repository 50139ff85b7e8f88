"""What does not fit ends the server at start, with one line that says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera.testing.server import expect_refusal
from tessera.testing.tiny import TINY

HIDDEN = "--enable-return-hidden-states"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("version", "SGLang 0.5.99 is not supported (supported: 0.5.17)"),
        ("seam", "model_runner.ModelRunner.forward: parameters was"),
        ("taken", "another plugin has already patched sglang.srt.server_args.ServerArgs.__post_init__"),
        ("bug", "tessera: refusing to start: 'NoneType' object is not callable"),
    ],
)
def test_a_broken_start_is_refused(faulty: Callable[[str], dict[str, str]], fault: str, said: str) -> None:
    """Wherever it shows, in the main process or in the scheduler, the whole server ends and says why."""
    log = expect_refusal(TINY, HIDDEN, env=faulty(fault))
    assert "tessera: refusing to start:" in log
    assert said in log


@pytest.mark.parametrize(
    "option", [["--enable-hierarchical-cache"], ["--tokenizer-worker-num", "2"], ["--is-embedding"]]
)
def test_an_unsupported_option_is_refused_by_name(option: list[str]) -> None:
    """The line names the option and the reason."""
    log = expect_refusal(TINY, HIDDEN, *option)
    assert f"tessera: refusing to start: {option[0]} cannot be combined with {HIDDEN}: " in log
