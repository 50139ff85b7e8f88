"""What comes for one request: outcomes while it streams, and the last one."""

from __future__ import annotations

import sys

from tessera.delivery.inbox import Inbox
from tessera.delivery.outcome import Delivered
from tessera.errors import WEIGHTS_CHANGED, RequestFailed, RowsUnavailable


class Mail:
    """Takes the outcomes of one request in their order.

    Args:
        inbox: where they arrive; the request is expected there.
        key: the request's.
    """

    def __init__(self, inbox: Inbox, key: str) -> None:
        self._inbox = inbox
        self._key = key
        self._received = 0
        self._last: tuple[Delivered, ...] = ()
        self._failure: RequestFailed | None = None

    async def early(self, upto: int) -> list[Delivered]:
        """The outcomes that were not taken yet, once the first ``upto`` of all chunks are there.

        Raises:
            RowsUnavailable: the weights changed meanwhile.
            RequestFailed: they could not be read.
        """
        found: list[Delivered] = []
        while self._received < upto and not self._last:
            delivered = await self._next()
            if delivered.outcome.proven == 0:
                found, self._received = [], 0
            if delivered.outcome.more:
                found.append(delivered)
                self._received += len(delivered.points)
            else:
                self._last = (delivered,)
        return found

    async def rest(self) -> list[Delivered]:
        """The outcomes that were not taken yet; the last one has what belongs to the request as a whole.

        Raises:
            RowsUnavailable: the weights changed meanwhile.
            RequestFailed: it could not be read.
        """
        return [*await self.early(sys.maxsize), *self._last]

    async def _next(self) -> Delivered:
        """After a failure nothing that comes is whole."""
        if self._failure is None:
            delivered = await self._inbox.take(self._key)
            if not delivered.outcome.code:
                return delivered
            kind = RowsUnavailable if delivered.outcome.code == WEIGHTS_CHANGED else RequestFailed
            self._failure = kind(delivered.outcome.code, delivered.outcome.message)
            if isinstance(self._failure, RowsUnavailable):
                self._failure.input_ids = delivered.outcome.input_ids
        raise self._failure
