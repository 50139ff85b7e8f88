"""The scheduler's end of the way out: a thread that waits for what was read and sends them to the main process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import zmq

from tessera.delivery.outcome import Outcome, pack
from tessera.errors import ROW_STORE_FAILED
from tessera.rows.reader import Read

logger = logging.getLogger(__name__)


class Outbox:
    """Sends what became of finished requests, off the scheduler's thread.

    Args:
        address: ZeroMQ address of the main process's `tessera.delivery.inbox.Inbox`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
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
            socket.send_multipart(_frames(outcomes, read))


def _frames(outcomes: Sequence[Outcome], read: Read | None) -> list[bytes]:
    try:
        return pack(outcomes, None if read is None else read.wait())
    except (
        Exception
    ) as error:  # the thread must live: each request of this step gets the error, the next step is served
        logger.exception("tessera: reading rows failed")
        message = f"reading rows failed: {error}"
        return pack([Outcome(outcome.key, code=ROW_STORE_FAILED, message=message) for outcome in outcomes], None)
