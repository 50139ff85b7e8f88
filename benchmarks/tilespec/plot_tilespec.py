"""Draw TileSpec against the best fixed setting by concurrency, and print the issue's figures as a Markdown table.

    python -m tilespec.plot_tilespec benchmarks/results/current/2026-11-26-h200/tilespec-*.jsonl --out tilespec.png

Ratios are taken within one file only, between servers that took turns; the best fixed setting at a load is the one that
TileSpec has the smallest ratio to, over all files. One line for each kind of prompts and temperature. TileSpec with
rejection sampling is compared with the same fixed settings, which do without it unless their names say otherwise.

Behind a ratio is its standard error by waves, of which each has the same prompts for all settings, where a file has
their rates. Until 2026-11-26 servers were not warmed up for each number of clients: --skip 1 leaves out first waves.
"""

import argparse
import importlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tilespec.settings import REJECTING

RATE, WAVES = "output_tokens_per_second", "each_wave"
NONE, USUAL, TILE, USELESS = "none", "k3", "tile", "tile-useless"
KNEE = 64
"""From this many clients up the GPU computes more than it reads."""
COLOURS = {"easy": "#1b9e77", "mixed": "#1f77b4", "hard": "#d95f02"}
LINES = {0.0: "-", 0.8: "--"}


class Place(NamedTuple):
    """A load, in one algorithm."""

    algorithm: str
    temperature: float
    kind: str
    clients: int


class Figure(NamedTuple):
    """A line of the table: what it is, what was found, what is wanted, and whether that is reached."""

    name: str
    found: str
    goal: str
    reached: bool


Ratios = dict[Place, dict[str, float]]
"""TileSpec's rate over that of each other setting; and of the useless draft over none, as `tile-useless`."""
Records = dict[str, dict[str, Any]]
"""Of one load and round, by setting."""


def main() -> None:
    """Read, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON lines of bench_tilespec.py")
    parser.add_argument("--out", type=Path, help="the picture (default: beside the first file, as .png)")
    parser.add_argument("--skip", type=int, default=0, help="first waves that do not count, where there are more")
    options = parser.parse_args()
    ratios, errors, starts = read(options.results, options.skip)
    if not any(_fixed(found) for found in ratios.values()):
        raise SystemExit("no file has TileSpec beside another setting under one load")
    print(table(figures(ratios)))
    print()
    print(loads(ratios, errors))
    out: Path = options.out or options.results[0].with_suffix(".png")
    draw(ratios, starts[0], out)
    print(f"\n{out}: {out.stat().st_size / 1000:.0f} kB")


def read(paths: Iterable[Path], skip: int = 0) -> tuple[Ratios, Ratios, list[dict[str, Any]]]:
    """The ratios of all files, the median over rounds and files; their standard errors; and the files' first lines.

    Of each measurement the first ``skip`` waves do not count.
    """
    found: dict[Place, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    by_wave: dict[Place, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    starts = []
    for path in paths:
        first, *records = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        starts.append(first)
        rounds: dict[tuple[Place, int], Records] = defaultdict(dict)
        for record in records:
            if RATE not in record:
                continue  # what failed says why
            place = Place(first["algorithm"], record["temperature"], record["kind"], record["clients"])
            rounds[place, record["round"]][record["setting"]] = record
        for (place, _), measured in rounds.items():
            for suffix, name, one, other in _pairs(measured):
                of = place._replace(algorithm=place.algorithm + suffix)
                found[of][name].append(_rate(one, skip) / _rate(other, skip))
                waves = zip(one.get(WAVES, ()), other.get(WAVES, ()), strict=False)  # fewer without speculation
                by_wave[of][name] += [mine / theirs for mine, theirs in waves][skip:]
    medians = {
        place: {name: statistics.median(values) for name, values in names.items()} for place, names in found.items()
    }
    errors = {
        place: {name: statistics.stdev(of) / math.sqrt(len(of)) for name, of in names.items() if len(of) > 1}
        for place, names in by_wave.items()
    }
    return medians, errors, starts


def _rate(record: dict[str, Any], skip: int) -> float:
    """Tokens per second without the first waves, which have as many tokens as the others."""
    left = record.get(WAVES, ())[skip:]
    return statistics.harmonic_mean(left) if skip and left else float(record[RATE])


def _pairs(records: Records) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """What is compared with what, of one load; before it what is to be said behind the algorithm's name, and its own.

    That is TileSpec as it is, and with rejection sampling.
    """
    for name, record in records.items():
        kind = name.removeprefix(TILE).removeprefix("-")
        if name.startswith(TILE) and (not kind or kind.isdigit() or kind == REJECTING):
            suffix = " with rejection sampling" if kind == REJECTING else ""
            others = (other for other in records if not other.startswith(TILE))
            yield from ((suffix, other, record, records[other]) for other in others)
    if USELESS in records and NONE in records:
        yield "", USELESS, records[USELESS], records[NONE]


def _fixed(found: dict[str, float]) -> dict[str, float]:
    """The ratios to fixed settings, no speculation among them."""
    return {name: ratio for name, ratio in found.items() if name != USELESS}


def figures(ratios: Ratios) -> list[Figure]:
    """The figures that the issue wants, those of them that were measured."""
    best = {place: min(_fixed(found).values()) for place, found in ratios.items() if _fixed(found)}
    usual = [found[USUAL] for found in ratios.values() if USUAL in found]
    single = [found[NONE] for place, found in ratios.items() if place.clients == 1 and NONE in found]
    alone = [ratio for place, ratio in best.items() if place.clients == 1]
    useless = [found[USELESS] for found in ratios.values() if USELESS in found]
    knee = [ratio for place, ratio in best.items() if place.clients >= KNEE]
    mean = statistics.geometric_mean
    lines = [
        _figure("over the best fixed setting, worst load", best.values(), min, 0.98),
        _figure(f"the same from {KNEE} clients up, worst load", knee, min, 1.05),
        _figure("over k = 3, geometric mean of all loads", usual, mean, 1.30),
        _figure("over the best fixed setting at 1 client, worst load", alone, min, 1.0),
        _figure("over no speculation at 1 client, geometric mean", single, mean, 1.0),
        _figure("useless draft over no speculation, worst load", useless, min, 0.95),
    ]
    return [line for line in lines if line]


def _figure(name: str, values: Iterable[float], take: Callable[[Any], float], goal: float) -> Figure | None:
    listed = list(values)
    if not listed:
        return None
    found = take(listed)
    return Figure(f"{name} ({len(listed)} loads)", f"{found:.3f}", f"≥ {goal:.2f}", found >= goal)


def table(lines: list[Figure]) -> str:
    """As Markdown."""
    rows = [f"| {line.name} | {line.found} | {line.goal} | {'yes' if line.reached else 'no'} |" for line in lines]
    return "\n".join(["| figure | found | goal | reached |", "|---|---|---|---|", *rows])


def loads(ratios: Ratios, errors: Ratios) -> str:
    """TileSpec over each setting, load by load, as Markdown."""
    names = sorted({name for found in ratios.values() for name in found})
    rows = []
    for place, found in sorted(ratios.items()):
        cells = [_with_error(found.get(name), errors[place].get(name)) for name in names]
        rows.append(f"| {place.algorithm}, {place.kind}, {place.temperature} | {place.clients} | {' | '.join(cells)} |")
    head = [f"| load | clients | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    return "\n".join([*head, *rows])


def _with_error(ratio: float | None, error: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if error is None else f"{ratio:.3f} ± {error:.3f}"


def draw(ratios: Ratios, start: dict[str, Any], out: Path) -> None:
    """Write the picture."""
    # By name: only the pictures need it, and it is no dependency of ours.
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    algorithms = sorted({place.algorithm for place in ratios})
    size = (5.5 * len(algorithms) + 1, 4.2)
    figure, panes = pyplot.subplots(1, len(algorithms), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for pane, algorithm in zip(panes[0], algorithms, strict=True):
        _pane(pane, {place: found for place, found in ratios.items() if place.algorithm == algorithm})
        pane.set_title(algorithm)
        pane.legend(frameon=False, fontsize=8)
    panes[0][0].set_ylabel("output tokens per second,\nover the best fixed setting")
    versions = ", ".join(f"{name} {version}" for name, version in start["versions"].items())
    figure.supxlabel(f"clients\n{start['gpu']}, {start['date'][:10]}, {versions}", fontsize=8)
    figure.savefig(out, dpi=130)


def _pane(pane: Any, ratios: Ratios) -> None:
    pane.axhline(1.0, color="0.35", linewidth=1)
    lines: dict[tuple[str, float], list[tuple[int, float]]] = defaultdict(list)
    for place, found in sorted(ratios.items()):
        if fixed := _fixed(found):
            lines[place.kind, place.temperature].append((place.clients, min(fixed.values())))
    for (kind, temperature), points in lines.items():
        style = {"color": COLOURS.get(kind, "0.5"), "linestyle": LINES.get(temperature, ":"), "marker": "o"}
        pane.plot(*zip(*points, strict=True), markersize=4, label=f"{kind}, temperature {temperature}", **style)
    pane.set_xscale("log", base=2)
    clients = sorted({place.clients for place in ratios})
    pane.set_xticks(clients, [str(number) for number in clients])
    pane.grid(alpha=0.3)
    pane.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
