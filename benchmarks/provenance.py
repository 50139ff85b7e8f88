"""Where a result comes from: command, versions, GPU, date. The first line of each results file."""

from __future__ import annotations

import datetime as dt
import platform
import sys
from importlib.metadata import version
from typing import Any

import torch


def provenance() -> dict[str, Any]:
    """What is needed to rerun a measurement."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "command": " ".join(sys.argv),
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "gpu": gpu,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("sglang", "torch", "triton")} | {"tessera": _tessera()},
    }


def _tessera() -> str:
    import tessera

    return tessera.__version__
