"""A progress bar on standard error, for work that takes long."""

import sys
import time
from typing import TextIO

_WIDTH = 30
_SECONDS = 0.1
"""Between two drawings."""


class Bar:
    """One line that is drawn again and again; it ends with a line feed when all is done.

    Args:
        what: is done, for example ``encode``.
        total: how many there are to do.
        shown: whether to draw at all.
        stream: where to.
    """

    def __init__(self, what: str, total: int, *, shown: bool, stream: TextIO | None = None) -> None:
        self._what = what
        self._total = total
        self._shown = shown and total > 0
        self._stream = stream or sys.stderr
        self._begin = time.monotonic()
        self._drawn = 0.0

    def show(self, done: int) -> None:
        """Draw how much is done."""
        now = time.monotonic()
        if not self._shown or (done < self._total and now - self._drawn < _SECONDS):
            return
        self._drawn = now
        end = "\n" if done >= self._total else ""
        self._stream.write(f"\r{self._line(done, now - self._begin)}{end}")
        self._stream.flush()

    def _line(self, done: int, seconds: float) -> str:
        filled = _WIDTH * done // self._total
        bar = "#" * filled + "." * (_WIDTH - filled)
        left = f", {seconds / done * (self._total - done):.0f} s left" if 0 < done < self._total else ""
        return f"{self._what} [{bar}] {done}/{self._total}, {seconds:.0f} s{left}   "
