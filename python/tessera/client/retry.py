"""When a failed call is tried again, and after which pause."""

import math
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tessera.client.errors import ClientError, RequestTimeout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter. Which errors are tried again is theirs to say (`ClientError.retried`).

    Attributes:
        times: how often a call is tried again at most; 0 for never.
        first: seconds of the first pause at most; each later one is twice as long.
        longest: seconds of any pause at most. A longer ``Retry-After`` of the server is honoured all the same.
    """

    times: int = 3
    first: float = 0.5
    longest: float = 8.0

    def pause(self, tried: int, error: ClientError, left: float) -> float | None:
        """Seconds to wait before the next try; None to give up.

        Args:
            tried: how often the call was tried again so far.
            error: how it failed.
            left: seconds until the call's time is over; a pause that would outlast it is not begun.
        """
        if not error.retried or tried >= self.times:
            return None
        drawn = min(self.longest, self.first * 2**tried) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        pause = max(drawn, error.retry_after or 0.0)
        return pause if pause < left else None


NEVER = Retry(times=0)
"""One try only."""


class Deadline:
    """When the time of a call is over.

    Args:
        seconds: that it is given from now on; None for no end.
        what: the call, for the message.
    """

    def __init__(self, seconds: float | None, what: str) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._what = what
        self._end = time.monotonic() + self._seconds

    @property
    def left(self) -> float:
        """Seconds that are left, never negative."""
        return max(self._end - time.monotonic(), 0.0)

    def check(self) -> None:
        """Raise `RequestTimeout` when it is over."""
        if self.left == 0.0:
            raise self.error()

    def until_due(self, steps: Iterable[T]) -> Iterator[T]:
        """The same steps, as long as there is time."""
        for step in steps:
            self.check()
            yield step

    def error(self) -> RequestTimeout:
        """The error that says so."""
        return RequestTimeout(
            f"{self._what} took longer than {self._seconds:g} s; give it more with timeout= or Timeouts, send less at "
            "once, or look at the server's load"
        )
