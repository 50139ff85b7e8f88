"""Draw what embeddings cost, from the JSON lines that bench_embeddings.py wrote.

Two panels over the same loads: throughput, and p99 latency, each as a ratio to the stock server in the same round.

  blue   idle    our server with --enable-return-hidden-states, nobody asks
  orange embed   the same server, return_embedding on every request

A small mark is one round, the large dot the median of the rounds; the line at 1.0 is the stock server. A load with too
few rounds is left out and named below the picture. Example (writes embeddings-5.png beside the results):

  python benchmarks/plot_embeddings.py benchmarks/results/current/2026-11-22-h200/embeddings-5.jsonl

Needs matplotlib, which the extra "dev" brings.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

STOCK = "stock"
COLOURS = {"idle": "#1f77b4", "embed": "#d95f02"}
NAMES = {"idle": "nobody asks", "embed": "every request embeds"}
OFFSETS = {"idle": -0.17, "embed": 0.17}
PANELS = {
    "requests_per_second": "throughput, ratio to stock\n(above 1: faster)",
    "p99": "p99 latency, ratio to stock\n(above 1: slower)",
}


class Load(NamedTuple):
    """What the clients of a measurement sent."""

    prompt_tokens: int
    output_tokens: int
    clients: int

    def __str__(self) -> str:
        return f"{self.prompt_tokens} in, {self.output_tokens} out\n{self.clients} clients"


Case = dict[int, dict[str, float]]
"""The measurements of one case by round."""


class Results(NamedTuple):
    """A results file: where it comes from, and its measurements by load and case."""

    provenance: dict[str, Any]
    cases: dict[Load, dict[str, Case]]


def main() -> None:
    """Read the results, draw the picture, say where it is."""
    options = _options()
    results = read(options.results)
    out: Path = options.out or options.results.with_suffix(".png")
    drawn = [load for load in sorted(results.cases) if rounds(results, load) >= options.least_rounds]
    if not drawn:
        raise SystemExit(f"{options.results}: no load has {options.least_rounds} rounds; see --least-rounds")
    draw(results, drawn, out)
    print(f"{out}: {len(drawn)} loads, {out.stat().st_size / 1000:.0f} kB")


def read(path: Path) -> Results:
    """Parse a results file: the provenance in the first line, then one line for each measurement."""
    first, *records = (json.loads(line) for line in path.read_text().splitlines())
    cases: dict[Load, dict[str, Case]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if "case" in record:
            load = Load(record["prompt_tokens"], record["output_tokens"], record["clients"])
            cases[load][record["case"]][record["round"]] = {name: record[name] for name in PANELS}
    return Results(first, dict(cases))


def rounds(results: Results, load: Load) -> int:
    """How many rounds have every case."""
    measured = (set(results.cases[load][case]) for case in (STOCK, *COLOURS))
    return len(set.intersection(*measured))


def ratios(cases: dict[str, Case], case: str, value: str) -> list[float]:
    """A case's value over the stock server's, in each round that has both."""
    common = sorted(set(cases[STOCK]) & set(cases[case]))
    return [cases[case][i][value] / cases[STOCK][i][value] for i in common]


def draw(results: Results, loads: list[Load], out: Path) -> None:
    """Write the picture."""
    # By name: only the pictures need it, and it is no dependency of ours.
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")

    size = (9.5, 1.9 + 0.85 * len(loads))
    figure, panes = pyplot.subplots(1, 2, figsize=size, sharey=True, layout="constrained")
    for pane, (value, label) in zip(panes, PANELS.items(), strict=True):
        pane.axvline(1.0, color="0.35", linewidth=1)
        for place, load in enumerate(loads):
            for case in COLOURS:
                _dots(pane, place + OFFSETS[case], ratios(results.cases[load], case, value), case)
        pane.set_xlabel(label)
        pane.grid(axis="x", alpha=0.3)
        pane.tick_params(axis="y", length=0)
        pane.spines[["top", "right", "left"]].set_visible(False)
        pane.margins(x=0.08)
    panes[0].set_yticks(range(len(loads)), [str(load) for load in loads])
    panes[0].set_ylim(len(loads) - 0.55, -0.55)
    handles, _ = panes[0].get_legend_handles_labels()
    figure.legend(handles[: len(COLOURS)], list(NAMES.values()), loc="outside upper center", ncols=2, frameon=False)
    figure.supxlabel(_caption(results, loads), fontsize=8, color="0.3")
    figure.savefig(out, dpi=130)


def _dots(pane: Any, height: float, found: list[float], case: str) -> None:
    pane.plot([min(found), max(found)], [height, height], color=COLOURS[case], linewidth=1.2, alpha=0.4)
    pane.plot(found, [height] * len(found), "|", color=COLOURS[case], markersize=9, markeredgewidth=1.3, alpha=0.8)
    median = statistics.median(found)
    pane.plot(median, height, "o", color=COLOURS[case], markersize=8, markeredgecolor="white", label=case)
    text = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    pane.annotate(f"{median:.3f}", (median, height), color=COLOURS[case], bbox=ground, **text)


def _caption(results: Results, loads: list[Load]) -> str:
    start = results.provenance
    versions = ", ".join(f"{name} {version}" for name, version in start["versions"].items())
    counts = sorted({rounds(results, load) for load in loads})
    lines = [
        f"{start['gpu']}, {start['date'][:10]}, {versions}",
        f"dot: median, mark: one round ({' or '.join(map(str, counts))} for each load), each to stock in its own round",
    ]
    missing = [load for load in results.cases if load not in loads]
    if missing:
        named = "; ".join(f"{str(load).replace(chr(10), ', ')} ({rounds(results, load)})" for load in missing)
        lines.append(f"left out for too few rounds: {named}")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines of bench_embeddings.py")
    parser.add_argument("--out", type=Path, help="the picture (default: beside the results, as .png)")
    parser.add_argument(
        "--least-rounds", type=int, default=3, metavar="N", help="leave out loads with fewer rounds (default 3)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
