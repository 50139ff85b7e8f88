"""What is said of a server that did not start: why, whatever its other processes wrote afterwards."""

from __future__ import annotations

from tessera.launching.server import ServerStartError

CAUSE = ["[12:00:01] Scheduler hit an exception: Traceback (most recent call last):", "ValueError: no room"]
AFTERWARDS = ["Traceback (most recent call last):", "EOFError"]


def _message(*log: str) -> list[str]:
    return str(ServerStartError("the server ended", "\n".join(log), 1)).splitlines()[1:]


def test_the_first_traceback_is_shown_before_the_end() -> None:
    """A hundred lines of processes that ended because one did hide nothing."""
    log = ["loading", *CAUSE, *AFTERWARDS * 50]
    message = _message(*log)
    assert message[:2] == CAUSE
    assert message[40:] == ["[...]", *AFTERWARDS * 20]


def test_a_short_log_is_shown_once() -> None:
    """Whole, and as it is."""
    assert _message("loading", *CAUSE) == ["loading", *CAUSE]


def test_without_a_traceback_the_end_is_shown() -> None:
    """Nothing else is known then."""
    log = [f"line {i}" for i in range(100)]
    assert _message(*log) == log[60:]
