"""How the stock launcher is called: its arguments, its environment, and whether it answers."""

import http.client
import os
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from tessera.launching.ports import HOST

LAUNCHER = ("-m", "sglang.launch_server")
"""Arguments of Python that start SGLang's launcher."""

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

# SGLang itself gives up on a health request after 20 s.
_HEALTH_SECONDS = 25.0
# A proxy of the environment must not see requests to this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def gpu_present() -> bool:
    """Return whether this machine shows an NVIDIA GPU to this process, without loading CUDA."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(Path("/dev").glob("nvidia[0-9]*"))


def has_replicas(extra_args: tuple[str, ...]) -> bool:
    """Return whether the arguments set the number of replicas (``--dp-size``)."""
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
