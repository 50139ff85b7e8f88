"""The scheduler's end of the way out: a thread that waits for what was read and sends them to the main process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import zmq

from tessera.delivery.outcome import Frame, Outcome, Vitals, pack
from tessera.errors import ROW_STORE_FAILED
from tessera.rows.reader import Read

logger = logging.getLogger(__name__)


class Outbox:
    """Sends what became of finished requests, off the scheduler's thread.

    Args:
        address: ZeroMQ address of the main process's `tessera.delivery.inbox.Inbox`.
        vitals: says how the row store is after a read of so many seconds; None where nobody counts.
    """

    def __init__(self, address: str, vitals: Callable[[float], Vitals] | None = None) -> None:
        self._address = address
        self._vitals = vitals
        self._queue: SimpleQueue[tuple[list[Outcome], Read | None]] = SimpleQueue()
        threading.Thread(target=self._run, name="tessera-outbox", daemon=True).start()

    def put(self, outcomes: list[Outcome], read: Read | None) -> None:
        """Hand over the outcomes of a step and the read that fetches their vectors. Returns at once."""
        self._queue.put((outcomes, read))

    def _run(self) -> None:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, 0)  # a vector is lost nowhere: the main process takes whatever comes
        socket.connect(self._address)
        while True:
            outcomes, read = self._queue.get()
            socket.send_multipart(self._frames(outcomes, read), copy=False)

    def _frames(self, outcomes: Sequence[Outcome], read: Read | None) -> list[Frame]:
        try:
            fetched = None if read is None else read.wait()
            vitals = None if self._vitals is None else self._vitals(0.0 if read is None else read.seconds)
            return pack(outcomes, fetched, vitals)
        except Exception as error:  # the thread must live: this step's requests get the error, the next is served
            logger.exception("tessera: reading rows failed")
            message = f"reading rows failed: {error}"
            return pack([Outcome(outcome.key, code=ROW_STORE_FAILED, message=message) for outcome in outcomes], None)
