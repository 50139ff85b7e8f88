"""Real servers shared between tests: a start costs more than most tests do."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tessera.launching.server import Progress, Server
from tessera_testing.tiny import TINY

_Key = tuple[Path, tuple[str, ...], tuple[tuple[str, str], ...], bool]
_START_SECONDS = 600.0
"""A spawned server of SGLang 0.5.23 with drafts took 144 s alone on two cores, and another process starts one, too."""
_RANKS = ("--dp-size", "--tp-size", "--pp-size")
MakeServer = Callable[..., Server]
"""`Server`, or what makes one from the same arguments."""


class StartedTwiceError(RuntimeError):
    """A server with equal options has been started in this run: tests that need it belong to one fixture."""


class Starts:
    """Which servers a run has started.

    Args:
        folder: shared by all processes of the run; each start leaves a file.
        own: a folder of this process alone. What lies in it is the same to a server as in another's.
    """

    def __init__(self, folder: Path, own: Path) -> None:
        self._folder = folder
        self._own = str(own)
        folder.mkdir(exist_ok=True)

    def note(self, key: object) -> None:
        """Note a start with these options.

        Raises:
            StartedTwiceError: there was one; the message names its test.
        """
        file = self._file(key)
        try:
            with file.open("x") as created:
                created.write(os.environ.get("PYTEST_CURRENT_TEST", ""))
        except FileExistsError as error:
            raise StartedTwiceError(f"{file.read_text()} has started it: give both one fixture, {key}") from error

    def forget(self, key: object) -> None:
        """Forget a start: the server did not come up, or has ended."""
        self._file(key).unlink(missing_ok=True)

    def _file(self, key: object) -> Path:
        same = repr(key).replace(self._own, "")
        return self._folder / hashlib.sha256(same.encode()).hexdigest()


class ServerPool:
    """Hands out one running server for each set of options, as a context manager that stops them all.

    Args:
        common_args: arguments that every server gets, after its own.
        log_dir: folder that keeps their logs; by default a log ends with its server.
        progress: called with a line every few seconds of a start.
        most: how many may live at once; an idle one needs about 2 GiB, and the least recently used one is stopped.
        make: makes each that is not to be spawned.
        starts: of the run, where each server is to start once.
    """

    def __init__(
        self,
        *,
        common_args: tuple[str, ...] = (),
        log_dir: Path | None = None,
        progress: Progress | None = None,
        most: int = 2,
        make: MakeServer = Server,
        starts: Starts | None = None,
    ) -> None:
        self._common_args = common_args
        self._log_dir = log_dir
        self._progress = progress
        self._most = most
        self._make = make
        self._starts = starts
        self._made = 0
        self._servers: OrderedDict[_Key, Server] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        while self._servers:
            self._stop_oldest()

    @property
    def alive(self) -> list[Server]:
        """The servers kept now, the least recently used first."""
        return list(self._servers.values())

    def get(
        self, *args: str, model: Path = TINY, env: Mapping[str, str] | None = None, spawned: bool = False
    ) -> Server:
        """Return a server with these options: a running one, or else a new one.

        It stays up at least until `get` has returned `most` others; one of several ranks only until another is asked
        for: they poll for work, and machines of the tests have two cores. If ``spawned``, it was started as users start
        it.

        Raises:
            ServerStartError: it did not start.
            StartedTwiceError: one was started before that no test has killed.
        """
        spawned = spawned or self._make is Server
        key = (model, args, tuple(sorted((env or {}).items())), spawned)
        server = self._servers.pop(key, None)
        if server is not None and server.exit_code is not None:
            server.stop()  # a test has killed it: nothing of it may remain beside the new one
            server = None
        elif server is None and self._starts is not None:
            self._starts.note(key)
        for other in [other for other in self._servers if {*_RANKS} & {*other[1]}]:
            self._servers.pop(other).stop()
        if server is None:
            try:
                server = self._start(Server if spawned else self._make, args, model, env)
            except BaseException:
                self._forget(key)
                raise
        self._servers[key] = server
        return server

    def _start(self, make: MakeServer, args: tuple[str, ...], model: Path, env: Mapping[str, str] | None) -> Server:
        while len(self._servers) >= self._most:
            self._stop_oldest()
        self._made += 1
        log_path = self._log_dir / f"server-{self._made:02d}.log" if self._log_dir else None
        how = {"env": env, "log_path": log_path, "progress": self._progress, "start_seconds": _START_SECONDS}
        return make(model, *args, *self._common_args, **how).__enter__()

    def _stop_oldest(self) -> None:
        key, server = self._servers.popitem(last=False)
        if server.exit_code is not None:
            self._forget(key)
        server.stop()

    def _forget(self, key: _Key) -> None:
        """Let a server that did not start, or that a test has killed, be started again."""
        if self._starts is not None:
            self._starts.forget(key)
