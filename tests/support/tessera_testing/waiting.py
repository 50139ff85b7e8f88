"""Waiting for something that another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 60.0
_POLL_SECONDS = 0.05


def wait_until(holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Return as soon as a condition holds.

    Raises:
        TimeoutError: it did not hold within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {holds.__qualname__}")
        time.sleep(_POLL_SECONDS)
