"""Room for answers that are on their way: those that ask for more than is left wait in line."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from tessera.errors import REQUEST_ABORTED, RequestFailed
from tessera.limits import LEFT_SECONDS


class Room:
    """A number of bytes that requests share, first come, first served. For the event loop alone.

    Args:
        most: how many bytes there are; nobody may ask for more at once.
    """

    def __init__(self, most: int) -> None:
        self.free = most
        self.on_change: Callable[[int, int], None] = lambda _held, _waiting: None
        """Called when `free` changes, with how many bytes are held and how many requests wait."""
        self._most = most
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enter(self, amount: int) -> asyncio.Future[None]:
        """Stand in line. The result is done once so many bytes are the caller's."""
        place = asyncio.get_running_loop().create_future()
        self._line.append((amount, place))
        self._admit()
        return place

    def leave(self, amount: int, place: asyncio.Future[None]) -> None:
        """Give back what `enter` gave, or leave the line."""
        if not place.cancel():
            self.free += amount
        self._admit()

    def _admit(self) -> None:
        while self._line and (self._line[0][1].cancelled() or self._line[0][0] <= self.free):
            amount, place = self._line.popleft()
            if not place.cancelled():
                self.free -= amount
                place.set_result(None)
        self.on_change(self._most - self.free, len(self._line))


class Lease:
    """What one HTTP request holds of a room, from before it is queued until its answer was sent.

    Args:
        room: the room.
        gone: whether the client has left.
    """

    def __init__(self, room: Room, gone: Callable[[], Awaitable[bool]]) -> None:
        self._room = room
        self._gone = gone
        self._held: tuple[int, asyncio.Future[None]] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it holds some, or waits for it."""
        return self._held is not None

    async def acquire(self, amount: int, go_on: Callable[[], None]) -> None:
        """Wait for so many bytes. A request acquires once: who held some and waited for more could wait for itself.

        Args:
            amount: bytes, no more than the room has.
            go_on: called now and then while it waits; raises where the request is to end.

        Raises:
            RequestFailed: the client left.
        """
        if self._held is not None:
            return
        place = self._room.enter(amount)
        self._held = amount, place
        while not (await asyncio.wait([place], timeout=LEFT_SECONDS))[0]:
            if await self._gone():
                raise RequestFailed(REQUEST_ABORTED, "the client left")
            go_on()

    def release(self) -> None:
        """All that it holds, or its place in line."""
        if self._held is not None:
            held, self._held = self._held, None
            self._room.leave(*held)


lease: ContextVar[Lease | None] = ContextVar("tessera_lease", default=None)
"""The lease of the HTTP request that is being answered; None outside of one."""
