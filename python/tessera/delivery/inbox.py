"""The main process's end of delivery: requests wait here for their rows."""

import asyncio
import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import zmq
import zmq.asyncio

from tessera.delivery.outcome import Delivered, Outcome, RowStoreStats, Values, kinds_of, unpack
from tessera.errors import ROWS_NOT_COLLECTED, WEIGHTS_CHANGED, RequestFailed, RowsUnavailable
from tessera.limits import DELIVERY_SECONDS

logger = logging.getLogger(__name__)

_PREFIX = "tessera-"

Prepare = Callable[[Values], Values]


class _Expected(NamedTuple):
    """What has arrived for a request, and the function that is applied to arriving values."""

    arrived: asyncio.Queue[Delivered]
    prepare: Prepare


class Inbox:
    """Receives outcomes from the scheduler and hands each to the request that expects it.

    The socket lies in a folder that only this user can enter, and only until every scheduler is connected: SGLang ends
    its main process with SIGKILL, so nothing would remove it at the end.
    """

    def __init__(self) -> None:
        _sweep()
        self._folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        _warn_elsewhere(self._folder)
        self.address = f"ipc://{self._folder}/results"
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.bind(self.address)
        atexit.register(self.hide)
        self._expected: dict[str, _Expected] = {}
        self._receiver: asyncio.Task[None] | None = None
        self.on_stats: Callable[[RowStoreStats, str], None] = lambda *_: None
        """Called with the row-store statistics of a step, and the kinds of read in it."""

    def hide(self) -> None:
        """Remove the folder. Call once every scheduler is connected: a connection outlives the path that made it."""
        atexit.unregister(self.hide)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self) -> None:
        """Begin to receive, unless this was begun. Call in the event loop, once the server takes requests."""
        if self._receiver is None or self._receiver.done():
            self.hide()
            self._receiver = asyncio.create_task(self._receive())

    def expect(self, key: str, prepare: Prepare = lambda values: values) -> None:
        """Announce a request, before the scheduler can have finished it. Call in the event loop.

        Args:
            key: the request's.
            prepare: applied to values when they arrive, before anybody takes them.
        """
        self.open()
        self._expected[key] = _Expected(asyncio.Queue(), prepare)

    async def take(self, key: str) -> Delivered:
        """The next outcome of a request; a failure if nothing comes in time."""
        try:
            return await asyncio.wait_for(self._expected[key].arrived.get(), DELIVERY_SECONDS)
        except TimeoutError:
            message = "the request finished on a path on which its rows are not collected; send it again"
            return Delivered(Outcome(key, code=ROWS_NOT_COLLECTED, message=message))

    def forget(self, key: str) -> None:
        """Stop expecting a request; what still comes for it is dropped."""
        self._expected.pop(key, None)

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            arrived, stats = unpack([frame.buffer for frame in frames])
            if stats is not None:
                self.on_stats(stats, kinds_of(arrived))
            for delivered in arrived:
                expected = self._expected.get(delivered.outcome.key)
                if expected is not None:
                    expected.arrived.put_nowait(delivered._replace(values=expected.prepare(delivered.values)))


class OutcomeReader:
    """Reads the values of one request from the inbox, while it streams and when it ends: in order, each once.

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
        """Wait for so many reads of each capability; returns the values that were not returned before.

        Raises:
            RowsUnavailable: the weights changed meanwhile.
            RequestFailed: they could not be read.
        """
        while not self._ended and any(self._received.get(name, 0) < count for name, count in complete.items()):
            await self._receive()
        return {} if self._ended else self._take()

    async def remaining(self) -> Values:
        """Wait for the end of the request; returns the values that were not returned before.

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
        """Take one outcome. After a failure each call raises it again: the values would be incomplete."""
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


def _warn_elsewhere(folder: str) -> None:
    """Warn if TMPDIR cannot be written, for example because it is full: Python then silently uses another folder."""
    wanted = os.environ.get("TMPDIR")
    if wanted and Path(wanted).absolute() != Path(folder).parent:
        logger.warning("tessera: TMPDIR=%s cannot be written; the folder of our socket is %s", wanted, folder)


def _sweep() -> None:
    """Remove the folders of servers that ended before their schedulers were connected."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}[0-9]*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        with suppress(FileNotFoundError):  # another server that starts sweeps too
            if pid.isdigit() and not Path("/proc", pid).exists() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
