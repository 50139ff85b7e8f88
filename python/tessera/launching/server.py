"""Starts the real, stock SGLang launcher and stops it again, leaving nothing behind.

Example::

    with Server(TINY, "--enable-return-hidden-states") as server:
        httpx.post(f"{server.url}/generate", json={"text": "def main(", "return_embedding": True})
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Protocol, Self

from tessera.launching.command import LAUNCHER, command, environment, has_replicas, is_healthy
from tessera.launching.ports import HOST, port_of, reserve_port
from tessera.launching.processes import ProcessFamily

START_SECONDS = 300.0
"""How long a start may take: 15 s on an idle machine with two cores, ten times that on a busy one."""
STOP_SECONDS = 15.0
"""How long a server may take to end by itself after SIGTERM; SGLang looks for it every 5 s."""

_POLL_SECONDS = 0.25
_PROGRESS_SECONDS = 5.0
_LOG_LINES = 40
_TRACEBACK = "Traceback (most recent call last)"

Progress = Callable[[str], None]


class ServerStartError(RuntimeError):
    """The server ended, or was not ready in time; the message has the first traceback in its log, and the log's end.

    Args:
        reason: what went wrong.
        log: all that the server wrote.
        exit_code: its exit status, None if it was still running.
    """

    def __init__(self, reason: str, log: str, exit_code: int | None) -> None:
        super().__init__(f"{reason}; of its log:\n{_excerpt(log)}")
        self.log = log
        self.exit_code = exit_code


class Process(Protocol):
    """What is needed of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The id of the process."""

    def poll(self) -> int | None:
        """Exit status, None while it runs."""

    def wait(self) -> int:
        """Exit status, once it has ended."""


class _Running(NamedTuple):
    process: Process
    family: ProcessFamily


class Server:
    """`python -m sglang.launch_server` in a process of its own, as a context manager.

    Without a GPU it gets the flags of the CPU engine first, so that `extra_args` override them.

    Args:
        model: folder of the model.
        extra_args: further arguments of the launcher.
        env: added to this process's environment.
        launched_by: arguments of Python that name the program, which takes SGLang's options.
        port: a free one by default.
        log_path: file that its output goes to; by default a temporary one, removed by `stop`.
        start_seconds: how long `with` waits for it to be ready.
        progress: called with one line every few seconds of the start, for example `print`.
    """

    def __init__(
        self,
        model: Path,
        *extra_args: str,
        env: Mapping[str, str] | None = None,
        launched_by: tuple[str, ...] = LAUNCHER,
        port: int | None = None,
        log_path: Path | None = None,
        start_seconds: float = START_SECONDS,
        progress: Progress | None = None,
    ) -> None:
        self._ports = ExitStack()
        self.port = self._reserve_port() if port is None else port
        self.url = f"http://{HOST}:{self.port}"
        # Where its processes meet. SGLang would take a port that is free now, and that a connection of another server
        # may have by the time they meet; replicas each need one of their own, which only SGLang can choose.
        meeting = () if has_replicas(extra_args) else ("--nccl-port", str(self._reserve_port()))
        self._command = command(model, self.port, (*meeting, *extra_args), launched_by)
        self._env = environment(env or {})
        self._keep_log = log_path is not None
        self._log_path = log_path
        self._log_text: str | None = None
        self._start_seconds = start_seconds
        self._progress = progress
        self._running: _Running | None = None

    def __enter__(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            ServerStartError: it ended or was not ready in time. Nothing of it is left then.
        """
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.start()
            self.wait_ready(self._start_seconds)
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the launcher, which is also the id of its process group.

        Raises:
            RuntimeError: it was never started.
        """
        return self._started().process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status of the launcher, None while it runs."""
        return self._started().process.poll()

    @property
    def log(self) -> str:
        """All that the server has written so far, also after `stop`."""
        if self._log_text is not None or self._log_path is None:
            return self._log_text or ""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start the process, without waiting for it."""
        if self._running is not None:
            raise RuntimeError("this server was started already: make a new one")
        self._log_path = self._log_path or _temporary_log()
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("wb") as log:
            process = self._launch(log)
        self._running = _Running(process, ProcessFamily(process.pid))

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until a token has come back through scheduler and detokenizer.

        Raises:
            ServerStartError: it ended, or `seconds` have passed. It is not stopped then.
        """
        # Until the scheduler is ready nothing listens, so asking costs a refused connection; the first request that is
        # answered generates one token, which /model_info and the like would not show.
        for waited in self._while_running(seconds):
            if is_healthy(self.url):
                self._report(f"server ready after {waited:.0f} s")
                return
        if self.exit_code is None:
            raise ServerStartError(f"the server was not ready after {seconds:.0f} s", self.log, None)
        raise ServerStartError(f"the server ended with exit code {self.exit_code}", self.log, self.exit_code)

    def stop(self) -> None:
        """End the server and everything that it started: SIGTERM, some patience, SIGKILL. May be called twice.

        Raises:
            RuntimeError: a process survived SIGKILL.
        """
        self._ports.close()
        if self._running is None or self._log_text is not None:
            return
        process, family = self._running
        family.end(STOP_SECONDS)
        process.wait()
        self._log_text = self.log
        if self._log_path is not None and not self._keep_log:
            self._log_path.unlink(missing_ok=True)

    def _launch(self, log: IO[bytes]) -> Process:
        """Start the launcher in a session of its own, without input; its output goes to `log`."""
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._env,
            start_new_session=True,
        )

    def _reserve_port(self) -> int:
        """Return a port that is this server's until `stop`."""
        return port_of(self._ports.enter_context(reserve_port()))

    def _started(self) -> _Running:
        if self._running is None:
            raise RuntimeError("the server was not started")
        return self._running

    def _while_running(self, seconds: float) -> Iterator[float]:
        """Yield the seconds waited so far, again and again, while the launcher runs and time is left."""
        family = self._started().family
        begin = time.monotonic()
        reported = 0.0
        while self.exit_code is None and (waited := time.monotonic() - begin) < seconds:
            family.refresh()
            if waited - reported >= _PROGRESS_SECONDS:
                reported = waited
                self._report(f"server starting, {waited:.0f} s: {_last_line(self.log)}")
            yield waited
            time.sleep(_POLL_SECONDS)

    def _report(self, line: str) -> None:
        if self._progress is not None:
            self._progress(line)


def _temporary_log() -> Path:
    handle, name = tempfile.mkstemp(prefix="tessera-server-", suffix=".log")
    os.close(handle)
    return Path(name)


def _excerpt(log: str) -> str:
    """The first traceback, for later ones are of processes that ended because one did, and the end."""
    lines = log.splitlines()
    end = max(len(lines) - _LOG_LINES, 0)
    first = next((i for i, line in enumerate(lines[:end]) if _TRACEBACK in line), end)
    cause = lines[first:end][:_LOG_LINES]
    return "\n".join([*cause, *(["[...]"] if cause else []), *lines[end:]])


def _last_line(log: str) -> str:
    # SGLang's own lines begin with the time in brackets; the others are warnings of what it imports.
    lines = [line for line in log.splitlines() if line.startswith("[")]
    return lines[-1][:160] if lines else "importing the engine"
