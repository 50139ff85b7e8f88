"""Two histograms of a calibration: mantissa errors and exponent mismatches, honest beside each cheat."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera.capabilities.fingerprints.calibration.distances import Measured


def draw(
    honest: Mapping[str, Sequence[Measured]], cheats: Mapping[str, Sequence[Measured]], limits: Any, path: Path
) -> None:
    """Write the picture; for each response its worst fingerprint counts, for it decides.

    Args:
        honest: responses by the way in which they were made.
        cheats: responses by the kind of cheat.
        limits: thresholds by their names.
        path: where to, PNG or SVG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 1)
    for axis, name, most, label in (
        (axes[0], "mant_err_mean", 64.0, "mantissa error, mean (worst fingerprint of a response)"),
        (axes[1], "exp_mismatches", 128.0, "exponent mismatches (worst fingerprint of a response)"),
    ):
        groups = {"honest": [one for responses in honest.values() for one in responses], **cheats}
        series = [[min(max(getattr(d, name) for d in one.distances), most) for one in some] for some in groups.values()]
        axis.hist(series, bins=48, range=(0, most), histtype="stepfilled", alpha=0.5, label=list(groups))
        axis.axvline(limits[name], color="black", linestyle="--", label=f"threshold {limits[name]:g}")
        axis.set_xlabel(label)
        axis.set_ylabel("responses")
        axis.set_yscale("symlog")
    axes[0].legend(fontsize="small", ncols=3)
    figure.savefig(path, dpi=120)
