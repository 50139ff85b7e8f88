"""Pictures that commands draw, with matplotlib. Not unit tests: its import takes as long as 300 of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.capabilities.fingerprints.calibration.distances import Measured, report
from tessera.capabilities.fingerprints.calibration.histograms import draw
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.cli import main
from tessera.tilespec import cache
from tessera.tilespec.cache import Profile
from tessera.tilespec.calibration import BINS, Calibration
from tessera.tilespec.nominal import nominal


def test_histograms(tmp_path: Path) -> None:
    """`tessera toploc calibrate --plot`: a picture is written."""
    honest = [Measured([Distance(2, 0.5, 0), Distance(4, 1.0, 1)], [128, 128])]
    cheat = [Measured([Distance(0, 0.2, 0), Distance(20, 6.0, 4)], [128, 128])]
    made: Any = report({"base": honest * 2}, {"fp8": cheat}, topk=128)
    draw({"base": honest}, {"fp8": cheat}, made["thresholds"], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_stairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tessera tilespec show --png`: the newest profile."""
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    calibration = Calibration(3)
    calibration.update(np.full((3, 3, BINS), 7, np.int32))
    cache.save(Profile({"gpu": "NVIDIA H200"}, nominal([0, 1, 3], 64), (calibration, calibration)))
    picture = tmp_path / "stairs.png"
    assert main(["tilespec", "show", "--png", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
