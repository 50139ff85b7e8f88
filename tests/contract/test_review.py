"""What a new SGLang is compared with, and what comes into the lock file: nothing that nobody has read."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tessera.cli import main
from tessera_patches import inventory
from tessera_patches.core import lock, review
from tessera_patches.core.lock import Entry, Shape, Shapes
from tessera_patches.core.releases import ReleaseMissing, Releases
from tessera_patches.core.seam import Seam
from tessera_patches.inventory import SEAMS

FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
CALLER = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
OTHER = "0.5.16"
STALE: Entry = {"parameters": ["self"], "is_async": False}


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> Seam:
    """The only one."""
    only = next(seam for seam in SEAMS if seam.target == FORWARD and seam.callers == (CALLER,))
    monkeypatch.setattr(lock, "SEAMS", (only,))
    monkeypatch.setattr(inventory, "at", lambda _: (only,))
    return only


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file of its own."""
    path = tmp_path / "lock.json"
    monkeypatch.setattr(lock, "PATH", path)
    return path


def of(version: str, entries: dict[str, Entry]) -> Shapes:
    """A lock file of one version."""
    return {path: [Shape(versions=[version], shape=entry)] for path, entry in entries.items()}


def test_the_file_is_as_it_is_written() -> None:
    """One shape a line, so that a review shows which are new; a version has one shape of each function."""
    text, shapes = lock.PATH.read_text(), lock.read()
    lock.write(shapes)
    assert lock.PATH.read_text() == text
    for path, found in shapes.items():
        versions = [version for shape in found for version in shape["versions"]]
        assert sorted(set(versions)) == sorted(versions), path


def test_an_equal_shape_needs_no_other_review(seam: Seam, file: Path) -> None:
    """The installed version is added to it; what no seam needs goes."""
    lock.write(of(OTHER, lock.current(seam)) | of(OTHER, {"gone": STALE}))
    assert main(["seams", "lock"]) == 0
    assert lock.read() == {
        path: [Shape(versions=[OTHER, lock.installed_version()], shape=entry)]
        for path, entry in lock.current(seam).items()
    }
    assert len(file.read_text().splitlines()) == 2 + 3 * len(seam.guards)


@pytest.mark.parametrize("option", [["--reviewed", "ModelRunner.forward"], ["--all"]])
def test_a_new_shape_comes_in_when_it_was_read(seam: Seam, file: Path, option: list[str], release: Path) -> None:
    """It is shown, and stays out until then; the older one stays beside it."""
    version = lock.installed_version()
    lock.write(of(OTHER, lock.current(seam) | {FORWARD: STALE}))
    assert release.is_dir()
    assert main(["seams", "lock"]) == 1
    assert file.is_file()
    assert lock.read()[FORWARD] == [Shape(versions=[OTHER], shape=STALE)]
    assert lock.mismatches(seam, lock.load(version)) == [f"{FORWARD} is not in the lock file; run: tessera seams lock"]
    assert main(["seams", "lock", *option]) == 0
    own = lock.current(seam)[FORWARD]
    assert lock.read()[FORWARD] == [Shape(versions=[OTHER], shape=STALE), Shape(versions=[version], shape=own)]
    assert lock.mismatches(seam, lock.load(version)) == []


def test_a_shape_that_changed_replaces_that_of_its_version(seam: Seam) -> None:
    """A seam that starts to rely on a body, or an edit of the installed SGLang."""
    version = lock.installed_version()
    made = review.record(of(version, lock.current(seam) | {FORWARD: STALE}), version, [FORWARD])
    assert made == of(version, lock.current(seam))


def test_what_is_gone_is_named(
    seam: Seam, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest is recorded."""
    needing = replace(seam, relied=(f"{CALLER}_of_old",))
    monkeypatch.setattr(lock, "SEAMS", (needing,))
    monkeypatch.setattr(inventory, "at", lambda _: (needing,))
    lock.write({})
    assert main(["seams", "lock", "--all"]) == 1
    assert capsys.readouterr().err.startswith(f"tessera seams: {CALLER}_of_old is not there")
    assert FORWARD in lock.read()
    assert file.is_file()


def test_a_name_that_is_not_new_is_refused(seam: Seam, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written."""
    lock.write(of(OTHER, lock.current(seam)))
    before = file.read_text()
    assert main(["seams", "lock", "--reviewed", "forward"]) == 1
    assert "not among the new shapes: forward" in capsys.readouterr().err
    assert file.read_text() == before


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for another release: forward has another parameter, and its caller calls something else."""
    installed = find_spec("sglang")
    assert installed is not None
    assert installed.submodule_search_locations is not None
    root = tmp_path / "release"
    shutil.copytree(
        installed.submodule_search_locations[0],
        root / "sglang",
        copy_function=os.symlink,
        ignore=lambda folder, names: [n for n in names if not n.endswith(".py") and not Path(folder, n).is_dir()],
    )
    for target, old, new in (
        (FORWARD, "def forward(\n        self,\n", "def forward(\n        self,\n        other,\n"),
        (CALLER, "model_runner.forward(", "model_runner.run("),
    ):
        path = root.joinpath(*target.split(".")[:-2]).with_suffix(".py")
        text = path.read_text()
        assert old in text
        path.unlink()
        path.write_text(text.replace(old, new))
    monkeypatch.setattr(Releases, "root", lambda _, version: root if version == OTHER else None)
    return root


def test_a_diff_of_what_is_locked(seam: Seam, release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With parameters and callers; what is the same is left out."""
    assert release.is_dir()
    assert main(["seams", "diff", OTHER]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"--- {lock.installed_version()} {FORWARD}", f"+++ {OTHER} {FORWARD}"]
    assert "+        other," in lines
    assert lines[-2:] == [f"{CALLER} no longer calls {FORWARD}", f"1 of 1 seams differ in SGLang {OTHER}"]
    assert sum(line.startswith("+++") for line in lines) == 1
    assert len(seam.guards) > 1


def test_what_cannot_be_downloaded_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On one line, and nothing is compared."""

    def missing(_: Releases, version: str) -> Path:
        raise ReleaseMissing(f"no {version}")

    monkeypatch.setattr(Releases, "root", missing)
    assert main(["seams", "diff", "9.9"]) == 1
    assert capsys.readouterr() == ("", "tessera seams: no 9.9\n")


def test_versions_are_ordered_as_numbers(file: Path) -> None:
    """Not as texts."""
    shapes: list[Shape] = [Shape(versions=["0.5.9", "0.5.17"], shape=STALE)]
    file.write_text(json.dumps({FORWARD: shapes}))
    assert lock.supported_versions() == ["0.5.9", "0.5.17"]
    assert review.last_reviewed(shapes, "0.5.17") == "0.5.9"
