"""The staircase of a cost profile as a picture. Needs matplotlib (extra ``plot``)."""

from pathlib import Path

from matplotlib.figure import Figure

from tessera.tilespec.costs import CostTable


def plot(costs: CostTable, file: Path) -> None:
    """Write milliseconds of a verification over its tokens as PNG: ragged tiers as stairs, uniform widths as dots."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    if costs.tiers:
        milliseconds = [seconds * 1e3 for seconds in costs.tiers.seconds]
        # A size between two tiers costs what the greater costs.
        axes.step(costs.tiers.sizes, milliseconds, where="pre", label="ragged, by tier")
    for width, curve in sorted(costs.uniform.items()):
        tokens = [bs * width for bs in curve.sizes]
        label = "plain decoding" if width == 1 else f"uniform, width {width}"
        axes.plot(tokens, [seconds * 1e3 for seconds in curve.seconds], "o", markersize=3, label=label)
    axes.set(xlabel="tokens verified in a step", ylabel="ms", ylim=(0, None), title="Verification, short context")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, format="png", dpi=120)
