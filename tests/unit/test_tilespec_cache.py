"""The cache of profiles: found again, never trusted when something is wrong with it. And the command that shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.cli import main
from tessera.limits import MAX_PROFILE_BYTES
from tessera.tilespec import cache
from tessera.tilespec.cache import Profile, ProfileUnusable
from tessera.tilespec.calibration import BINS, Calibration, Calibrations
from tessera.tilespec.calibration_saver import CalibrationSaver
from tessera.tilespec.costs import CostTable, Curve

ROOT = Path(__file__).parents[2]
FACTS: dict[str, Any] = {"gpu": "NVIDIA H200", "model": "abc", "tiers": [64, 128], "tp": 1}


def profile() -> Profile:
    """A small one."""
    costs = CostTable(
        tiers=Curve([64, 128], [0.004, 0.005]),
        uniform={1: Curve([1, 64], [0.003, 0.004]), 4: Curve([1, 64], [0.004, 0.007])},
        draft={3: Curve([1, 64], [0.001, 0.002])},
        extend={1: Curve([1], [0.0005]), 4: Curve([1], [0.0006])},
        kv_seconds={0: 1e-9, 3: 2e-9},
        host_seconds=1e-4,
        batch_sizes=[1, 64],
    )
    return Profile(FACTS, costs, learnt(7))


def learnt(trials: int) -> Calibrations:
    """From so many trials of greedy requests, and none of others."""
    greedy = Calibration(3)
    greedy.update(np.full((3, 3, BINS), trials, np.int32))
    return greedy, Calibration(3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the test."""
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tilespec"


def test_the_key_is_of_the_facts() -> None:
    """Not of their order; every difference counts; what has no JSON form is an error, not a collision."""
    assert cache.key(FACTS) == cache.key(dict(reversed(FACTS.items())))
    others = [{**FACTS, "tp": 2}, {**FACTS, "tp": "1"}, {**FACTS, "tiers": [128, 64]}, {"gpu": "NVIDIA H200"}]
    assert len({cache.key(facts) for facts in (FACTS, *others)}) == 5
    with pytest.raises(TypeError):
        cache.key({"x": object()})
    with pytest.raises(ValueError, match=r"Out of range"):
        cache.key({"x": float("nan")})


def test_a_profile_is_found_again(folder: Path) -> None:
    """With its costs and its calibration, by the same facts only; in a file of the user's own."""
    assert cache.load(FACTS) is None
    file = cache.save(profile())
    assert file == folder / f"{cache.key(FACTS)}.json"
    assert file.stat().st_mode & 0o777 == 0o600
    found = cache.load(FACTS)
    assert found is not None
    assert found.costs.to_json() == profile().costs.to_json()
    for one, known in zip(found.calibrations, profile().calibrations, strict=True):
        np.testing.assert_allclose(one.acceptance(), known.acceptance())
    assert cache.load({**FACTS, "tp": 2}) is None
    assert cache.profiles() == [file]
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_what_was_learnt_is_kept_for_the_next_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread of its own, in the profile's file; where that cannot be written, a warning says so."""
    file = cache.save(profile())
    saver = CalibrationSaver(profile())
    saver.save(learnt(50))
    saver.wait()
    found = cache.load(FACTS)
    assert found is not None
    assert [int(one.trials.sum()) for one in found.calibrations] == [50 * 3 * BINS, 0]
    assert found.costs.to_json() == profile().costs.to_json()
    folder.rename(folder.with_name("gone"))
    folder.write_text("a file where the folder was")
    warnings: list[str] = []
    monkeypatch.setattr(
        "tessera.tilespec.calibration_saver.logger.warning", lambda text, *values: warnings.append(text % values)
    )
    saver.save(learnt(60))
    saver.wait()
    (warning,) = warnings
    assert "is not kept for the next start" in warning
    assert str(folder) in warning
    assert not file.exists()


def damage(file: Path) -> dict[str, bytes]:
    """Ways in which a file can be wrong, and one that is another server's."""
    content = file.read_bytes()
    parsed = json.loads(content)
    moved = cache.save(Profile({**FACTS, "tp": 2}, profile().costs, profile().calibrations)).read_bytes()
    costs = {**parsed["costs"], "kv_seconds": 0.5}
    return {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "no JSON": b"\xff\xfe",
        "deep": b"[" * 100_000,
        "other schema": json.dumps({**parsed, "schema": cache.SCHEMA - 1}).encode(),
        "changed": json.dumps({**parsed, "costs": costs}).encode(),
        "list": b"[]",
        "large": content + b" " * MAX_PROFILE_BYTES,
        "another server's": moved,
    }


def test_a_damaged_file_is_not_used() -> None:
    """And is replaced by the next profile."""
    file = cache.save(profile())
    for content in damage(file).values():
        file.write_bytes(content)
        with pytest.raises(ProfileUnusable, match=str(file)):
            cache.load(FACTS)
        cache.save(profile())
        assert cache.load(FACTS)


def test_a_folder_of_others_is_not_used(folder: Path) -> None:
    """Neither read nor written."""
    cache.save(profile())
    folder.chmod(0o777)
    with pytest.raises(ProfileUnusable, match=r"can be written by one"):
        cache.load(FACTS)
    with pytest.raises(OSError, match=r"set TESSERA_CACHE to a folder of your own"):
        cache.save(profile())


def test_spot_check() -> None:
    """Ten percent, in both directions; what is not a time is stale."""
    assert not cache.spot_check([1.0, 2.0], [1.05, 1.9])
    for now in ([1.2, 2.0], [1.0, 1.7], [1.0, float("nan")]):
        assert "ms now" in cache.spot_check([1.0, 2.0], now)


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    """The newest profile as a table."""
    older = cache.save(Profile({**FACTS, "tp": 2}, profile().costs, profile().calibrations))
    os.utime(older, (1, 1))
    file = cache.save(profile())
    assert main(["tilespec", "show"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{file}\n")
    assert "gpu: NVIDIA H200" in printed
    assert "    128  5.000" in printed


def test_show_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a profile, and with a damaged one."""
    assert main(["tilespec", "show"]) == 1
    assert "started with --tile-spec" in capsys.readouterr().err
    cache.save(profile()).write_text("{}")
    assert main(["tilespec", "show"]) == 1
    assert "Delete it" in capsys.readouterr().err
    assert main(["tilespec", "show", "nofile.json"]) == 1
    assert capsys.readouterr().err == "nofile.json: No such file or directory\n"


def test_profile_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says why there is nothing to measure, and starts nothing."""
    monkeypatch.setattr("tessera.cli.tilespec.gpu_present", lambda: False)
    assert main(["tilespec", "profile", "MODEL", "--", "--speculative-algorithm", "EAGLE"]) == 1
    assert "CUDA graphs" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks/results/current").glob("*/tilespec-profile*.json")))
def test_published_profiles(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the docs link can be shown."""
    assert main(["tilespec", "show", str(file)]) == 0
    assert "ragged verification" in capsys.readouterr().out
