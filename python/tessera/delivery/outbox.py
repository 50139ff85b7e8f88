"""The scheduler's end of delivery: reads wait here until they arrive, and go to the main process."""

import logging
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from tessera.delivery.outcome import Outcome, RowStoreStats, pack
from tessera.errors import ROW_STORE_FAILED, StartRefused
from tessera.rows.reader import Read
from tessera.rows.reads import Frame

logger = logging.getLogger(__name__)

COPIED_BYTES = 2**20
"""Larger frames are sent from where they are. Smaller ones are copied: what frees the others is a thread of pyzmq's."""


_CONNECT_MILLISECONDS = 30_000


class Outbox:
    """Sends the outcomes of finished requests. For the scheduler's thread alone.

    No thread of its own waits for copies and sends them: it would have to ask the scheduler's thread for the
    interpreter's lock some twenty times for each read, and get it after 5 ms each time, for that thread is busy also
    when the server is idle (docs/design/log/2026-11-22.md).

    Args:
        address: ZeroMQ address of the main process's `tessera.delivery.inbox.Inbox`.
        stats: returns the row-store statistics, given the seconds that a read took.

    Raises:
        StartRefused: no connection was made in time. Once it is, the address is needed no more.
    """

    def __init__(self, address: str, stats: Callable[[float], RowStoreStats] | None = None) -> None:
        self.stats = stats
        """Called for each message; None without metrics."""
        self._waiting: deque[tuple[list[Outcome], Read | None]] = deque()
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH, copy_threshold=COPIED_BYTES)
        self._socket.set(zmq.SNDHWM, 0)  # a vector is lost nowhere: the main process takes whatever comes
        self._socket.set(zmq.IMMEDIATE, 1)  # or it would be ready to send before it is connected
        self._socket.connect(address)
        if not self._socket.poll(_CONNECT_MILLISECONDS, zmq.POLLOUT):
            raise StartRefused(f"nothing receives rows at {address}")

    def send_first_stats(self, *, counted: bool) -> None:
        """Send the row-store statistics before the first request; later ones are sent only if metrics are on."""
        self.put([], None)
        self.send()
        if not counted:
            self.stats = None

    def put(self, outcomes: list[Outcome], read: Read | None) -> None:
        """Add the outcomes of a step, and the read that fetches their values. Returns at once."""
        self._waiting.append((outcomes, read))

    def send(self, *, wait: bool = False) -> None:
        """Send the steps whose reads have arrived, in their order.

        Args:
            wait: whether to wait for the others, where the scheduler's thread has nothing else to do.
        """
        while self._waiting:
            outcomes, read = self._waiting[0]
            frames = self._frames(outcomes, read, wait=wait)
            if frames is None:
                return
            self._waiting.popleft()
            self._socket.send_multipart(frames, copy=False)

    def _frames(self, outcomes: Sequence[Outcome], read: Read | None, *, wait: bool) -> list[Frame] | None:
        try:
            fetched = None if read is None else read.result(wait=wait)
            if read is not None and fetched is None:
                return None
            stats = None if self.stats is None else self.stats(0.0 if read is None else read.seconds())
            return pack(outcomes, fetched, stats)
        except Exception as error:  # the scheduler must live: this step's requests get the error, the next is served
            logger.exception("tessera: reading rows failed")
            message = f"reading rows failed: {error}"
            return pack([Outcome(outcome.key, code=ROW_STORE_FAILED, message=message) for outcome in outcomes], None)
