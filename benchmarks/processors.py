"""How much of the processors' time the hypervisor gave to others: what makes windows on a borrowed host void."""

from __future__ import annotations

from pathlib import Path

Ticks = tuple[int, int]
"""What was stolen so far and what there was, of all processors."""


def processor_time() -> Ticks:
    """The counts of now (proc_stat(5))."""
    ticks = [int(field) for field in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


def stolen_since(before: Ticks) -> float:
    """The share that was stolen since then, 0 to 1."""
    stolen, total = (after - earlier for after, earlier in zip(processor_time(), before, strict=True))
    return round(stolen / max(total, 1), 4)
