"""The loss curves of a training log, as a picture."""

import importlib
from pathlib import Path
from typing import Any

from tiny_training.journal import read_journal


def plot_journal(journal: Path, picture: Path) -> None:
    """Draw training losses (nats per token) and held-out bits per byte by step."""
    # By name: only this picture needs it, and it is no dependency of ours.
    pyplot = importlib.import_module("matplotlib.pyplot")

    records = read_journal(journal)
    figure, panes = pyplot.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
    for model in ("target", "draft"):
        _curve(panes[0], records, "loss", model, "loss")
        _curve(panes[1], records, "check", model, "bits_per_byte")
    panes[0].set_title("training loss (target: text, draft: distillation)")
    panes[0].set_ylabel("nats per token")
    panes[1].set_title("held-out files")
    panes[1].set_ylabel("bits per byte")
    for pane in panes:
        pane.set_xlabel("step")
        pane.set_yscale("log")
        pane.grid(alpha=0.3, which="both")
        pane.legend()
    figure.savefig(picture, dpi=100)


def _curve(pane: Any, records: list[dict[str, Any]], kind: str, model: str, field: str) -> None:
    points = [
        (record["step"], record[field]) for record in records if record["kind"] == kind and record["model"] == model
    ]
    if points:
        pane.plot(*zip(*points, strict=True), label=model, linewidth=1)
