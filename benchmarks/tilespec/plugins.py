"""Plugins of SGLang's for the benchmark's servers, which find them on their path; each does nothing unless asked to."""

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

PATIENCE = 600.0
"""Seconds that a server waits for another one, or for its turn."""
_BENCHMARKS = Path(__file__).resolve().parents[1]
_POINTS = """[sglang.srt.plugins]
tilespec_weights = tilespec.shared_weights:register
tilespec_gate = tilespec.profile_gate:register
tilespec_progress = tilespec.progress:register
tilespec_forced = tilespec.forced:register
tilespec_thread = tilespec.thread_profile:register
tilespec_without = tilespec.without:register
"""
_POLL_SECONDS = 0.2


def on_path(folder: Path) -> dict[str, str]:
    """Write into `folder` what names the plugins; return the environment in which a server finds them."""
    meta = folder / "tilespec_benchmark-1.dist-info"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: tilespec_benchmark\nVersion: 1\n", encoding="utf-8")
    (meta / "entry_points.txt").write_text(_POINTS, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(_BENCHMARKS), os.environ.get("PYTHONPATH", "")])}


def path_of(variable: str) -> Path | None:
    """The path in a variable of a scheduler's environment; None in the launcher, and where it is not set."""
    if variable not in os.environ or multiprocessing.parent_process() is None:
        return None
    return Path(os.environ[variable])


def command_environment(variable: str, path: Path) -> dict[str, str]:
    """Take back what was sent before; return what a server needs in its environment."""
    path.unlink(missing_ok=True)
    return {variable: str(path)}


def send_command(path: Path, what: tuple[Any, ...]) -> None:
    """Have a scheduler do something once it looks for commands, which it does between steps, for that takes time."""
    path.write_text(json.dumps(what), encoding="utf-8")


def next_command(path: Path) -> list[Any] | None:
    """What a scheduler is to do from now on; None where nothing was sent since it looked last."""
    if not path.exists():
        return None
    what: list[Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return what


def wait_for(path: Path, why: str) -> None:
    """Until there is such a file.

    Raises:
        RuntimeError: there is none in `PATIENCE`; `why` says what was waited for.
    """
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{why}: no {path} in {PATIENCE:.0f} s")
        time.sleep(_POLL_SECONDS)
