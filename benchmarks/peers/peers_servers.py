"""Servers of SGLang's tests: started in the tests' own session, and shared by tests that ask for equal ones.

A start takes longer than most tests, and many classes of SGLang's tests start the same server again. So one that a test
ends is only given back, until another test wants one with other options.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import requests

START_SECONDS = 300.0
_STEP_SECONDS = 0.5


class Servers:
    """At most one server.

    Args:
        options: from the options that a test gives to those of this machine.
        local: from a model's name to its folder.
        kill: SGLang's ``kill_process_tree``.
        start: SGLang's helper that starts a process and copies its output to the files of a test.
        share: whether a server outlives the test that started it.
    """

    def __init__(
        self,
        options: Callable[[Any], list[str]],
        local: Callable[[str], str],
        kill: Callable[..., None],
        start: Callable[..., subprocess.Popen[Any]],
        *,
        share: bool,
    ) -> None:
        self._options, self._local, self._kill, self._start, self._share = options, local, kill, start, share
        self._live: tuple[object, subprocess.Popen[Any]] | None = None

    def launch(
        self,
        model: str,
        base_url: str,
        timeout: float = START_SECONDS,  # noqa: ARG002 - SGLang's own is for larger models
        api_key: str | None = None,  # noqa: ARG002 - no test asks what happens without it, and servers can be shared
        other_args: Any = None,
        env: dict[str, str] | None = None,
        return_stdout_stderr: Any = None,
        **_: object,
    ) -> subprocess.Popen[Any]:
        """Stand for SGLang's ``popen_launch_server``.

        Raises:
            RuntimeError: the server ended at its start.
            TimeoutError: it was not ready in time.
        """
        where = base_url.removeprefix("http://")
        host, port = where.split(":")
        options = self._options(other_args or ())
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", self._local(model)]
        command += ["--host", host, "--port", port, *options]
        if "--enable-metrics" in options and "--served-model-name" not in options:
            command += ["--served-model-name", model]  # tests look for it in metrics
        full = {**os.environ, **(env or {})}
        key = (command, {name: value for name, value in full.items() if not name.startswith("PYTEST_")})
        if self._live and self._live[0] == key and not return_stdout_stderr and _healthy(base_url):
            requests.post(f"{base_url}/flush_cache", timeout=20)
            return self._live[1]
        self.end()
        print("peers:", shlex.join(command), flush=True)
        process = self._start(command, full, return_stdout_stderr)
        self._live = (key, process)
        self._wait(process, base_url)
        return process

    def give_back(self, pid: int | None, *rest: Any, **options: Any) -> None:
        """Stand for SGLang's ``kill_process_tree``."""
        if self._share and self._live and self._live[1].pid == pid:
            return
        self._kill(pid, *rest, **options)

    def give_back_process(self, process: subprocess.Popen[Any], *_: Any, **__: Any) -> None:
        """Stand for SGLang's ``terminate_and_kill_process_tree``."""
        self.give_back(process.pid)

    def end(self) -> None:
        """End the server, if there is one."""
        if self._live is None:
            return
        process = self._live[1]
        self._live = None
        with contextlib.suppress(Exception):  # SGLang's own raises what psutil raises
            self._kill(process.pid)
        process.wait(30)

    def _wait(self, process: subprocess.Popen[Any], url: str) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if process.poll() is not None:
                self._live = None
                raise RuntimeError(f"Server process exited with code {process.returncode}. Check server logs")
            if _healthy(url):
                return
            time.sleep(_STEP_SECONDS)
        self.end()
        raise TimeoutError("Server failed to start within the timeout period")


def _healthy(url: str) -> bool:
    try:
        answer = requests.get(f"{url}/health_generate", timeout=20)
    except requests.RequestException:
        return False
    return answer.status_code == HTTPStatus.OK
