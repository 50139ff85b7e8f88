"""Starts SGLang's own router (the package sglang-router) in front of servers, and stops it again."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from tessera.launching.ports import HOST, port_of, reserve_port
from tessera.launching.processes import ProcessFamily

START_SECONDS = 300.0
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.1


@contextmanager
def router(*workers: str, policy: str = "round_robin") -> Iterator[str]:
    """Yield the URL of a router that distributes requests over these servers.

    Raises:
        RuntimeError: it ended, or did not know all workers in time; the message has the end of its log.
    """
    with reserve_port() as own, reserve_port() as metrics, tempfile.TemporaryFile() as log:
        address = ["--host", HOST, "--port", str(port_of(own))]
        ports = [*address, "--prometheus-host", HOST, "--prometheus-port", str(port_of(metrics))]
        options = ["--policy", policy, "--worker-startup-check-interval", "1", "--worker-urls", *workers]
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang_router.launch_router", *ports, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        family = ProcessFamily(process.pid)
        url = f"http://{HOST}:{port_of(own)}"
        try:
            if not _knows(url, len(workers), process):
                log.seek(0)
                raise RuntimeError(f"the router is not ready:\n{log.read()[-4000:].decode(errors='replace')}")
            yield url
        finally:
            family.end(STOP_SECONDS)
            process.wait()


def _knows(url: str, workers: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/workers", timeout=5) as response:  # noqa: S310 - an address of ours
                healthy = response.read().count(b'"is_healthy":true')
            if response.status == HTTPStatus.OK and healthy == workers:
                return True
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(_POLL_SECONDS)
    return False
