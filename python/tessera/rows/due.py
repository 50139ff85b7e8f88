"""Find the running requests that have a complete read, without a look at all of them in every step."""

from collections import defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class DueReads(Generic[T]):
    """Running requests of which something is read, by the step in which each must be checked again.

    One that needs n more tokens for its next read cannot have it before n / stride more steps: of 64 requests that
    generate a token each step, two are looked at. For the scheduler's thread alone.

    Args:
        tokens_to_next: how many tokens a request needs for its next read, 0 or less where one is complete; None where
            the request runs no more.
        stride: tokens that a step may add to a request, at most.
    """

    def __init__(self, tokens_to_next: Callable[[T], int | None], stride: int) -> None:
        self._tokens_to_next = tokens_to_next
        self._stride = stride
        self._step = 0
        self._due: defaultdict[int, list[T]] = defaultdict(list)
        self._known: set[int] = set()
        self._ready: list[T] = []

    def add(self, request: T) -> None:
        """Add a request, unless it is known, as a retracted one that runs again."""
        if id(request) not in self._known:
            self._known.add(id(request))
            self._due[self._step + 1].append(request)

    def step(self) -> list[T]:
        """Begin the next step. Returns the requests with a complete read; some of them may have ended since."""
        self._step += 1
        for request in self._due.pop(self._step, ()):
            self._place(request)
        return self._ready

    def take(self) -> list[T]:
        """Return those that still run. Read them before the next step, in which they are checked again."""
        ready, self._ready = self._ready, []
        running = [request for request in ready if self._tokens_to_next(request) is not None]
        for request in ready:
            self._due[self._step + 1].append(request)
        return running

    def _place(self, request: T) -> None:
        tokens = self._tokens_to_next(request)
        if tokens is None:
            self._known.discard(id(request))
        elif tokens <= 0:
            self._ready.append(request)
        else:
            self._due[self._step + -(-tokens // self._stride)].append(request)
