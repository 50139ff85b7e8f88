"""What a GPU did in a trace: kernels that overlap count once, the host's events not at all."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bench_decode
from gpu_trace import gpu_time, read_trace


def event(cat: str, begin: float, lasted: float, name: str) -> dict[str, Any]:
    """As torch's profiler writes it."""
    return {"ph": "X", "cat": cat, "ts": begin, "dur": lasted, "name": name}


EVENTS = [
    event("kernel", 30.0, 5.0, "b"),
    event("kernel", 10.0, 10.0, "a"),
    event("gpu_memcpy", 15.0, 10.0, "copy"),
    event("kernel", 16.0, 2.0, "a"),
    event("cuda_runtime", 0.0, 100.0, "cudaGraphLaunch"),
    {"ph": "M", "name": "process_name"},
]


def test_busy_time_is_the_union(tmp_path: Path) -> None:
    """Of 25 us from the first begin to the last end, 20."""
    path = tmp_path / "x.trace.json.gz"
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        json.dump({"traceEvents": EVENTS}, stream)
    assert read_trace(path) == (25.0, 20.0, {"a": 12.0, "copy": 10.0, "b": 5.0})


def test_a_trace_without_a_gpu_is_an_error() -> None:
    """And not a GPU that was never busy."""
    with pytest.raises(ValueError, match="nothing ran on a GPU"):
        gpu_time(EVENTS[4:])


def test_what_reads_traces_starts_as_its_help_says() -> None:
    """With nothing on the path but its own folder: the models of TileSpec's rig are no part of it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, bench_decode.__file__, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert "--servers" in shown
