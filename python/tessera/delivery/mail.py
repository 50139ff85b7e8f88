"""What comes for one request: what is read while it streams, and what is read when it ends."""

from collections.abc import Mapping
from typing import Any

from tessera.delivery.inbox import Inbox
from tessera.delivery.outcome import Values
from tessera.errors import WEIGHTS_CHANGED, RequestFailed, RowsUnavailable


class Mail:
    """Takes the values of one request in their order, each once.

    Args:
        inbox: where they arrive; the request is expected there.
        key: the request's.
    """

    def __init__(self, inbox: Inbox, key: str) -> None:
        self._inbox = inbox
        self._key = key
        self._received: dict[str, int] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._ended = False
        self._failure: RequestFailed | None = None

    async def until(self, complete: Mapping[str, int]) -> Values:
        """What was not taken yet, once so many reads of each capability have come.

        Raises:
            RowsUnavailable: the weights changed meanwhile.
            RequestFailed: they could not be read.
        """
        while not self._ended and any(self._received.get(name, 0) < count for name, count in complete.items()):
            await self._receive()
        return {} if self._ended else self._take()

    async def remaining(self) -> Values:
        """What was not taken yet, once the request has ended.

        Raises:
            RowsUnavailable: the weights changed meanwhile.
            RequestFailed: it could not be read.
        """
        while not self._ended:
            await self._receive()
        return self._take()

    def _take(self) -> Values:
        found, self._waiting = self._waiting, {}
        return found

    async def _receive(self) -> None:
        """After a failure nothing that comes is whole."""
        if self._failure is not None:
            raise self._failure
        outcome, values = await self._inbox.take(self._key)
        if outcome.code:
            kind = RowsUnavailable if outcome.code == WEIGHTS_CHANGED else RequestFailed
            self._failure = kind(outcome.code, outcome.message)
            if isinstance(self._failure, RowsUnavailable):
                self._failure.values = values
            raise self._failure
        if outcome.resets:
            self._received, self._waiting = {}, {}
        for part in outcome.parts:
            self._received[part.capability] = self._received.get(part.capability, 0) + 1
        for name, own in values.items():
            self._waiting.setdefault(name, []).extend(own)
        self._ended = not outcome.more
