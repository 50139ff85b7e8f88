"""Raw results of measurements: a page says what each of them shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from provenance import provenance
from tessera_testing.pages import DOCS, ROOT

RESULTS = ROOT / "benchmarks" / "results" / "current"
PAGES = {page: page.read_text() for folder in (DOCS, ROOT / "benchmarks") for page in folder.rglob("*.md")}

COMMITS_SINCE = "2026-11-28"
"""Runs of earlier days did not record their commit, nor does the log name each."""
WITHOUT_COMMIT = {
    "2026-11-28-cpu/encode-killed.jsonl": "the log names no commit, and the next one changed the benchmark",
    "2026-11-29-h200/refused-0.5.23.jsonl": "the log names no commit, and trials changed between its leases",
    "2026-11-30-cpu/state-checkpoints.jsonl": "written by hand; neither it nor the log names a commit",
}
"""Results whose commit nobody can tell any more, and why."""
COMMIT = re.compile(r"[0-9a-f]{7,40}(-dirty)?")
FILLED_IN = re.compile(r"[0-9a-f]{40}(-dirty)?")
SOURCES = {"the day's log", "git history"}
"""Where a commit is from that was filled in afterwards."""
DATED = [file for file in sorted(RESULTS.rglob("*.jsonl")) if file.parent.name >= COMMITS_SINCE]


def headers(file: Path) -> list[dict[str, object]]:
    """The lines that say where the measurements after them come from: the first, and each one with a date."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return lines[:1] + [line for line in lines[1:] if "date" in line]


def names_commit(header: dict[str, object]) -> bool:
    """Whether it has one; one that was filled in is whole, and says from where."""
    form = COMMIT
    if "commit_from" in header:
        if header["commit_from"] not in SOURCES:
            return False
        form = FILLED_IN
    return bool(form.fullmatch(str(header.get("commit"))))


def names(page: Path, text: str, file: Path) -> bool:
    """Whether a page names a file of the day that it is the log of, or of a folder that it names; the ending is free.

    A report, or a picture, beside raw values names these, too.
    """
    day = file.parent.name in text or file.parent.name.startswith(page.stem)
    return day and bool(re.search(rf"[/`]{re.escape(file.stem)}(?:\.\w+)?(?![\w-])", text))


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("*.*")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_page_names_it(file: Path) -> None:
    """One that no page needs any more is removed."""
    assert any(names(page, text, file) for page, text in PAGES.items())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("in `2026-11-30-cpu/tests-both.txt`.", True),
        ("2026-11-30-cpu: `tests-both`", True),
        ("[it](../2026-11-30-cpu/tests-both.md)", True),
        ("`2026-11-29-cpu/tests-both.txt`", False),
        ("2026-11-30-cpu: `tests-both-2.txt`, `tests`, tests-both", False),
    ],
)
def test_what_counts_as_a_name(*, text: str, named: bool) -> None:
    """Folder and file, not a longer or shorter name; no folder in the log of its day."""
    file = Path("2026-11-30-cpu/tests-both.txt")
    assert names(Path("moe.md"), text, file) is named
    assert names(Path("log/2026-11-30.md"), "`tests-both.txt`", file)


@pytest.mark.parametrize("file", DATED, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_each_header_names_its_commit(file: Path) -> None:
    """Nobody can run again what nobody can check out."""
    unknown = [header for header in headers(file) if not names_commit(header)]
    assert bool(unknown) is (f"{file.parent.name}/{file.name}" in WITHOUT_COMMIT), unknown


def test_files_without_a_commit_exist() -> None:
    """An exception goes with its file."""
    assert [name for name in WITHOUT_COMMIT if not (RESULTS / name).exists()] == []


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ({"commit": "7092c3291f"}, True),
        ({"commit": "7092c3291f-dirty"}, True),
        ({"commit": "0" * 40, "commit_from": "git history"}, True),
        ({"commit": "7092c3291f", "commit_from": "git history"}, False),
        ({"commit": "0" * 40, "commit_from": "memory"}, False),
        ({"commit": None}, False),
        ({"commit": ""}, False),
        ({"date": "2026-11-30"}, False),
    ],
)
def test_what_counts_as_a_commit(*, header: dict[str, object], named: bool) -> None:
    """Recorded ones may be short; one that was filled in is whole."""
    assert names_commit(header) is named


def test_results_begin_with_their_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That of the checkout; without git, what the host was told; with neither, there is no result."""
    if (ROOT / ".git").exists():
        assert names_commit(provenance())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TESSERA_COMMIT", "7092c3291f")
    assert provenance()["commit"] == "7092c3291f"
    for nothing in ("", None):
        if nothing is None:
            monkeypatch.delenv("TESSERA_COMMIT")
        else:
            monkeypatch.setenv("TESSERA_COMMIT", nothing)
        with pytest.raises(RuntimeError, match="TESSERA_COMMIT"):
            provenance()
