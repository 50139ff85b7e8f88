"""A table and a picture of what bench_moe.py wrote: FILE.md and FILE.png beside FILE.jsonl. It calls this itself.

  left    throughput by runner, as a ratio to the stock server with the same runner: median, least and most round
  right   distance of embeddings (1 - cosine, the worst of the prompts) to those of the reference runner, beside the
          distance that another batch makes on the same runner: what is not above it is noise

Example:  python benchmarks/plot_moe.py benchmarks/results/moe.jsonl

Needs matplotlib, which the extra "dev" brings.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moe_agreement import beyond_noise

FLOOR = 1e-7
"""A distance of nothing has no place on a logarithmic axis."""
COLOURS = {"idle": "#1f77b4", "embed": "#d95f02"}


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines of bench_moe.py")
    options = parser.parse_args()
    write(options.results)


def write(results: Path) -> None:
    """Both, beside the results."""
    found = records(results)
    page = results.with_suffix(".md")
    page.write_text("\n".join(lines(found)) + "\n", encoding="utf-8")
    if started := [record for record in found if "rows" in record and "failed" not in record]:
        plot(started, results.with_suffix(".png"))
    print(f"{page} and its picture")


def records(path: Path) -> list[dict[str, Any]]:
    """One for each runner, from all lines about it; the reference first, the others by name.

    The model is that of its first line; throughput may be of one with more layers, and has their number.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        part = json.loads(line)
        before, model = found.get(part["backend"], {}), part.get("model", {})
        for load in part.get("throughput", []):
            load["layers"] = model.get("num_hidden_layers", "?")
        found[part["backend"]] = before | part | {"model": before.get("model", model)}
    return sorted(found.values(), key=lambda record: (record["backend"] != "triton", record["backend"]))


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """The table: one line for each runner and load, those that did not start with the reason."""
    first = found[0]
    options = " ".join(first["server_args"]) or "no further options"
    layers = first["model"].get("num_hidden_layers", "?")
    yield f"GPU {first['provenance']['gpu']}, {first['provenance']['date']}, {layers} layers, {options}"
    yield ""
    yield "| runner | load | nobody asks, of stock | every request embeds, of stock | least cosine to the reference |"
    yield "|---|---|---|---|---|"
    for record in found:
        yield from _row(record)
    yield ""
    yield "| verified under | made under | pass, calibrated | pass, the paper's limits | mantissa mean, calibrated |"
    yield "|---|---|---|---|---|"
    for record in found:
        for made, one in record.get("fingerprints", {}).items():
            counts = f"{one['passed']} of {one['of']} | {one['passed_by_the_paper']} of {one['of']}"
            yield f"| `{record['backend']}` | `{made}` | {counts} | {one['thresholds']['mant_err_mean']:.2f} |"


def _row(record: dict[str, Any]) -> Iterator[str]:
    name = record["backend"]
    if "failed" in record:
        yield f"| `{name}` | failed ({record['failed']}): {_cell(record['reason'])} | | | |"
    if "rows" not in record:
        return
    rows = record["rows"]
    least = f"{rows['to_reference']['least']:.6f} (in a batch {record['in_a_batch']['least']:.6f})"
    least += " **beyond noise**" if beyond_noise(rows) else ""
    if rows["bits_of"]:
        yield f"| `{name}` | the very bits of `{rows['bits_of']}`, so its kernels | | | {least} |"
    for load in record.get("throughput", []):
        shares = [f"{load[case][0]:.3f} ({load[case][1]:.3f} to {load[case][2]:.3f})" for case in COLOURS]
        layers = f", {load['layers']} layers" if "layers" in load else ""
        yield f"| `{name}` | {load['load']}{layers} | {shares[0]} | {shares[1]} | {least} |"
    if not rows["bits_of"] and "throughput" not in record:
        yield f"| `{name}` | not measured | | | {least} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def plot(found: list[dict[str, Any]], picture: Path) -> None:
    """Draw the runners that started."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 1.5 + 0.5 * len(found)), layout="constrained")
    names = [record["backend"] for record in found]
    for case, shift in (("idle", -0.12), ("embed", 0.12)):
        for row, record in enumerate(found):
            for load in record.get("throughput", []):
                middle, least, most = load[case]
                left.plot([least, most], [row + shift] * 2, color=COLOURS[case], linewidth=1, alpha=0.5)
                left.plot(middle, row + shift, "o", color=COLOURS[case], label=case if not row else None)
    left.axvline(1.0, color="black", linewidth=0.8)
    left.set_xlabel("requests a second, ratio to stock")
    apart = [record["rows"]["to_reference"] for record in found], [record["in_a_batch"] for record in found]
    for cosines, mark, label in zip(apart, "ox", ("to the reference", "to itself in a batch"), strict=True):
        distances = [max(1 - one["least"], FLOOR) for one in cosines]
        right.plot(distances, range(len(found)), mark, label=label)
    right.set_xscale("log")
    right.set_xlabel("1 - least cosine of embeddings")
    for axes in (left, right):
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)  # the first on top
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(handles.values(), handles.keys(), fontsize=8)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main()
