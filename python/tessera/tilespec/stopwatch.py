"""Times of decode steps, from the start of one to the start of the next, without waiting for the device."""

import time
from collections import deque
from typing import Generic, TypeVar

import torch

from tessera.tilespec.streams import record

Tag = TypeVar("Tag")


class Stopwatch(Generic[Tag]):
    """Times consecutive steps. For one thread, on the current stream.

    Args:
        device: type of the device that runs the steps; on "cuda" times are those of events, else of the host's clock.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._last: tuple[torch.cuda.Event | float, Tag] | None = None
        self._in_flight: deque[tuple[torch.cuda.Event, torch.cuda.Event, Tag]] = deque()
        self._done: list[tuple[float, Tag]] = []
        self._free: list[torch.cuda.Event] = []

    def start(self, tag: Tag) -> None:
        """A step begins, and the previous one ends."""
        now = self._now()
        if self._last is not None:
            before, which = self._last
            if isinstance(now, float) and isinstance(before, float):
                self._done.append((now - before, which))
            elif isinstance(now, torch.cuda.Event) and isinstance(before, torch.cuda.Event):
                self._in_flight.append((before, now, which))
        self._last = (now, tag)

    def interrupt(self) -> Tag | None:
        """Drop the step that began last, as another operation follows it. Returns its tag."""
        last, self._last = self._last, None
        return None if last is None else last[1]

    def receive(self) -> list[tuple[float, Tag]]:
        """Seconds and tags of the steps whose times are known by now, the oldest first."""
        done, self._done = self._done, []
        while self._in_flight and self._in_flight[0][1].query():
            begin, end, tag = self._in_flight.popleft()
            done.append((begin.elapsed_time(end) / 1e3, tag))
            self._free.append(begin)  # as the end of the step before it was read already
        return done

    def _now(self) -> torch.cuda.Event | float:
        if not self._cuda:
            return time.perf_counter()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        record(event)
        return event
