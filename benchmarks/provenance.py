"""Results files: the first line says where they come from (command, commit, versions, GPU, date), each line is JSON."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import torch


def provenance() -> dict[str, Any]:
    """What is needed to rerun a measurement.

    Raises:
        RuntimeError: the commit is not known.
    """
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "command": " ".join(sys.argv),
        "commit": _commit(),
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "gpu": gpu,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("sglang", "torch", "triton")} | {"tessera": _tessera()},
    }


def note(record: dict[str, Any], out: TextIO) -> None:
    """Write one line."""
    print(json.dumps(record), file=out, flush=True)


def show(record: dict[str, Any], out: TextIO) -> None:
    """Write one line, and show it."""
    note(record, out)
    note(record, sys.stdout)


def _commit() -> str:
    """Of the checkout, with "-dirty" where files differ from it; TESSERA_COMMIT on a machine without its history."""
    commit = _described() or os.environ.get("TESSERA_COMMIT")
    if not commit:
        msg = "results name the commit they were measured at: without git's history, TESSERA_COMMIT has to say it"
        raise RuntimeError(msg)
    return commit


def _described() -> str | None:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10", "--match="],  # noqa: S607 - whichever git there is
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _tessera() -> str:
    import tessera

    return tessera.__version__
