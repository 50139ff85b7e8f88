"""Starts the process that has imported the engine, and makes others of it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, NamedTuple, Self, cast

from tessera.launching.command import environment
from tessera_testing.prepared.command import Command
from tessera_testing.prepared.imports import Imported
from tessera_testing.prepared.parent import Parent
from tessera_testing.waiting import wait_until

PROGRAM = ("-m", "tessera_testing.prepared")
_MOST_BYTES = 1 << 17
_END_SECONDS = 60.0


class Forked:
    """A child of this process, with what `subprocess.Popen` has of it.

    Args:
        pid: its id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        """Wait until it has ended.

        Raises:
            TimeoutError: it has not after `_END_SECONDS`.
        """
        wait_until(lambda: self.poll() is not None, _END_SECONDS)
        return cast("int", self.returncode)


class Interpreter:
    """A Python that has imported the engine, as a context manager; it starts when it is first needed.

    Args:
        program: arguments of Python that start it; the number of a socket is added.
    """

    def __init__(self, program: tuple[str, ...] = PROGRAM) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._started: _Started | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._started is not None:
            self._started.socket.close()
            self._started.process.wait()

    def differing(self, env: Mapping[str, str]) -> set[str]:
        """Return the variables for which a process with this environment might have imported something else."""
        return self._begin().imported.differing(env)

    def run(self, args: Sequence[str], env: Mapping[str, str], out: IO[bytes]) -> Forked:
        """Run Python with these arguments in a session of its own, without input.

        Raises:
            RuntimeError: the process that has imported the engine is gone.
        """
        with Path(os.devnull).open("rb") as nothing:
            return self.connect(args, env, Path.cwd(), [nothing, out, out])

    def connect(self, args: Sequence[str], env: Mapping[str, str], folder: Path, files: Sequence[IO[bytes]]) -> Forked:
        """The same in a folder; its input, output and errors are these files."""
        command = Command(tuple(args), dict(env), str(folder), (0, 1, 2), own_session=True)
        return Forked(self._begin().parent.make(command, [file.fileno() for file in files]))

    def finish(
        self, args: Sequence[str], env: Mapping[str, str], folder: Path, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments to its end, as `subprocess.run`, whose process it is where imports differ.

        Raises:
            TimeoutExpired: it took longer than ``seconds``, and was killed.
        """
        if self.differing(env):
            command = [sys.executable, *args]
            return subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds, check=False
            )
        with Path(os.devnull).open("rb") as nothing, TemporaryFile() as out, TemporaryFile() as err:
            process = self.connect(args, env, folder, [nothing, out, err])
            try:
                wait_until(lambda: process.poll() is not None, seconds)
            except TimeoutError as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(args), seconds) from error
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return subprocess.CompletedProcess(args, process.wait(), *texts)

    def _begin(self) -> _Started:
        with self._lock:
            if self._started is None:
                self._started = _start(self._program)
            return self._started


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: socket.socket
    parent: Parent
    imported: Imported


def _start(program: tuple[str, ...]) -> _Started:
    """Start it, and wait for its imports.

    Raises:
        RuntimeError: they failed; the message has the end of what it wrote.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *program, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment({}),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        received = ours.recv(_MOST_BYTES)
        if not received:
            log.seek(0)
            raise RuntimeError(f"the engine was not imported:\n{log.read()[-4000:].decode(errors='replace')}")
    return _Started(process, ours, Parent(ours), pickle.loads(received))  # noqa: S301 - our own process sent it
