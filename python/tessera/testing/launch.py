"""How the stock launcher is called: its arguments, its environment, and whether it answers."""

from __future__ import annotations

import http.client
import os
import random
import socket
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"
SMALL = (
    *("--mem-fraction-static", "0.5", "--max-total-tokens", "60000"),
    *("--cuda-graph-bs-prefill", "16", "64", "512"),
)
"""Options of a server that shares a GPU with others that start meanwhile: the second one bounds what it takes, the
third one makes its start half as long."""

LAUNCHER = ("-m", "sglang.launch_server")
"""Arguments of Python that start SGLang's launcher."""

TWO_RANKS = ("--tp-size", "2")
"""Options of a server whose model is split over two processes. Without a GPU, SGLang wants `RANKS_ON_CPUS` too."""
RANKS_ON_CPUS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}


class Ranks(NamedTuple):
    """How a server of several ranks is started: options, environment, names of the tests' faults that it needs."""

    options: tuple[str, ...]
    env: dict[str, str]
    faults: tuple[str, ...]


_CPU_ARGS = (
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    *("--dtype", "float32"),
    # SGLang ends where what is free has shrunk by this share since its start: others start at the same time.
    *("--mem-fraction-static", "0.9"),
    *("--max-total-tokens", "8192"),
    "--sleep-on-idle",  # an idle server would keep one of two cores busy
)
# One thread for each of the engine's processes is fastest on two cores, and keeps sums in one order.
_CPU_ENV = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
# SGLang takes a scheduler that we end for one that crashed, and waits 5 s before it looks at it.
_NO_AUTOPSY = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}

_PORTS = range(20_000, 32_000)

# SGLang itself gives up on a health request after 20 s.
_HEALTH_SECONDS = 25.0
# A proxy of the environment must not see requests to this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def gpu_present() -> bool:
    """Return whether this machine shows an NVIDIA GPU to this process, without loading CUDA."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(Path("/dev").glob("nvidia[0-9]*"))


def hold_port() -> socket.socket:
    """Return a socket bound to a port that is free; while it is open, no other call returns the same port.

    A server can still bind it, for servers allow that their address is reused (``SO_REUSEADDR``), as this socket does
    once it has found that nobody has the port. A server binds it many seconds later. So it is none that the system
    would give to a connection meanwhile: those begin at 32,768 (``net.ipv4.ip_local_port_range``).

    Raises:
        RuntimeError: no port is free.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        holder = socket.socket()
        try:
            holder.bind((HOST, port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    raise RuntimeError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def free_port() -> int:
    """Return a port that nothing listens on now, and that nobody holds."""
    with hold_port() as holder:
        return port_of(holder)


def port_of(holder: socket.socket) -> int:
    """Return the port that a socket is bound to."""
    return int(holder.getsockname()[1])


def has_replicas(extra_args: tuple[str, ...]) -> bool:
    """Return whether the server is told how many replicas to start (``--dp-size``)."""
    return any(arg.startswith(("--dp-size", "--data-parallel-size")) for arg in extra_args)


def command(model: Path, port: int, extra_args: tuple[str, ...], launched_by: tuple[str, ...] = LAUNCHER) -> list[str]:
    """Return the launcher's command line; without a GPU the flags of the CPU engine come before `extra_args`.

    `launched_by` are the arguments of Python that name another program that takes SGLang's options.
    """
    launcher = [sys.executable, *launched_by, "--model-path", str(model)]
    # `wait_ready` generates a token anyway; the launcher's own warm-up would do it a second time.
    address = ["--host", HOST, "--port", str(port), "--skip-server-warmup"]
    return [*launcher, *address, *(() if gpu_present() else _CPU_ARGS), *extra_args]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, what a server of a local model needs, and `extra`."""
    ours = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **_NO_AUTOPSY}
    return {**os.environ, **ours, **({} if gpu_present() else _CPU_ENV), **extra}


def is_healthy(url: str) -> bool:
    """Return whether the server generates a token now. Takes a second, for SGLang looks once a second."""
    with (
        suppress(OSError, http.client.HTTPException),  # URLError and HTTPError are OSErrors: refused, 503, timed out
        _OPENER.open(f"{url}/health_generate", timeout=_HEALTH_SECONDS) as response,
    ):
        return bool(response.status == HTTPStatus.OK)
    return False
