"""What came back, how the processes grew, and the report of both."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tessera.launching.processes import ProcessFamily
from tessera.launching.server import Server

MOST_ERROR = 1e-5
"""Relative, in float32."""
MAIN = "main"


@dataclass
class Tally:
    """What was answered so far.

    Attributes:
        operations: requests and verified claims.
        wrong: what is wrong with each wrong answer.
        worst: the largest relative error of a vector.
        retracted: how many answers were retracted at least once.
        memory: after each round, the operations so far and the MB of each process.
        events: what else was done to the server, and what came of it.
    """

    operations: int = 0
    wrong: list[str] = field(default_factory=list)
    worst: float = 0.0
    retracted: int = 0
    memory: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)

    def note(self, problem: str, error: float = 0.0) -> None:
        """One answer."""
        self.operations += 1
        self.worst = max(self.worst, error)
        if problem or error > MOST_ERROR:
            self.wrong.append(problem or f"off by {error:.1e}")


def processes(server: Server) -> dict[str, int]:
    """The server's own processes by name; helpers of Python's are left out."""
    found = {MAIN: server.pid}
    for pid in ProcessFamily(server.pid).refresh():
        name = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")[0].decode().strip()
        if name.startswith("sglang::"):
            found[name.removeprefix("sglang::")] = pid
    return found


def memory(server: Server) -> dict[str, float]:
    """Resident MB of each process."""
    page = resource.getpagesize() / 1e6
    return {n: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for n, pid in processes(server).items()}


def growth(samples: list[tuple[int, dict[str, float]]], name: str) -> float:
    """MB for 1,000 operations, by least squares over the later half, when caches are full; NaN for too few rounds."""
    later = samples[len(samples) // 2 :]
    if len(later) < 3:
        return float("nan")
    operations = [count / 1000 for count, _ in later]
    return float(np.polyfit(operations, [mb[name] for _, mb in later], 1)[0])


def report(tally: Tally, seconds: float) -> str:
    """As a page."""
    lines = [
        "| | |",
        "|---|---|",
        f"| operations | {tally.operations:,} in {seconds / 60:.1f} minutes |",
        f"| wrong answers | {len(tally.wrong)} |",
        f"| worst relative error | {tally.worst:.1e} |",
        f"| answers that were retracted, under speculation | {tally.retracted:,} |",
        *(f"| {what} | {came} |" for what, came in tally.events),
        "",
        "| process | MB after the first round | MB at the end | MB for 1,000 operations |",
        "|---|---|---|---|",
    ]
    names = tally.memory[0][1] if tally.memory else {}
    for name in names:
        first, last = tally.memory[0][1][name], tally.memory[-1][1][name]
        lines.append(f"| {name} | {first:.0f} | {last:.0f} | {growth(tally.memory, name):+.2f} |")
    return "\n".join([*lines, *(f"\nwrong: {problem}" for problem in tally.wrong[:20])])
