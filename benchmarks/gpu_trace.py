"""What a GPU did in a trace of torch's profiler: for how long anything ran on it, and for how long each kernel.

Kernels of several streams overlap, so busy time is that of their union.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events; all others are of the host."""


class GpuTime(NamedTuple):
    """Microseconds: `busy` ones of `wall`, from the first event's begin to the last one's end; and of each kernel."""

    wall: float
    busy: float
    kernels: Counter[str]


def read_trace(path: Path) -> GpuTime:
    """Read a ``.trace.json.gz``.

    Raises:
        ValueError: nothing ran on a GPU in it.
    """
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return gpu_time(json.load(stream)["traceEvents"])


def gpu_time(events: list[dict[str, Any]]) -> GpuTime:
    """Add up the events of a trace, in any order.

    Raises:
        ValueError: nothing ran on a GPU in it.
    """
    ran = sorted((event["ts"], event["dur"], event["name"]) for event in events if event.get("cat") in ON_GPU)
    if not ran:
        raise ValueError("nothing ran on a GPU in this trace")
    first, end, busy = ran[0][0], ran[0][0], 0.0
    kernels: Counter[str] = Counter()
    for begin, lasted, name in ran:
        busy += max(begin + lasted - max(begin, end), 0.0)
        end = max(end, begin + lasted)
        kernels[name] += lasted
    return GpuTime(end - first, busy, kernels)
