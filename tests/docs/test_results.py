"""Raw results of measurements: a page says what each of them shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from provenance import provenance
from tessera_testing import models_page, suite_runs
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


LOG = """\
# One NVIDIA H200, 12:38 to 12:46 UTC, commit 34f766d, SGLang 0.5.23 with its own stack
awq.log:MEASURED awq: 286 answers, 229 of them with a cached prefix, least cosine 0.999999, of means 0.999999
awq.log:1 passed, 2 warnings in 146.41s (0:02:26)
fp8-weights.log:1 failed, 2 warnings in 139.78s (0:02:19)
Qwen3-Next.log:errors 0.034 to 0.044
# second lease, 1bc88db, two H200
-- chain: exit 124, 335 s; 2 passed, 10 deselected in 327.17s (0:05:27)
MEASURED eagle: 329 answers, least cosine 0.99991
MEASURED eagle: 300 drafts accepted, worst shortfall 0.05
-- dp-attention: exit 1, 67 s; 1 failed in 61.13s (0:01:01)
-- Falcon-H1: exit 0, 242 s;
-- observe_acceptance: the failure is a limit of time
## SGLang 0.5.23 and 0.5.17, one H200, 5eff549
-- 0.5.17 fa3-eagle: 1 passed in 144 s; 309 drafts accepted
-- fa3-tree: 1 passed in 144 s
"""


def test_what_a_log_of_suites_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run with where it comes from; none whose version of SGLang is not recorded."""
    (tmp_path / "2026-11-28-h200").mkdir()
    (tmp_path / "2026-11-28-h200" / "tests.txt").write_text(LOG)
    monkeypatch.setattr(suite_runs, "LOGS", tmp_path)
    found = [
        (run.suite, run.sglang, run.gpus, run.commit, run.outcome(), ", ".join(run.measured()))
        for run in suite_runs.runs()
    ]
    first, second = ("0.5.23", "one", "34f766d"), ("0.5.23", "two", "1bc88db")
    assert found == [
        ("awq", *first, "1 passed", "286 answers, least cosine 0.999999"),
        ("fp8-weights", *first, "1 failed", ""),
        ("chain", *second, "2 passed, cut off", "329 answers, least cosine 0.99991, 300 drafts accepted"),
        ("dp-attention", *second, "1 failed", ""),
        ("Falcon-H1", *second, "passed", ""),
        ("fa3-eagle", "0.5.17", "one", "5eff549", "1 passed", "309 drafts accepted"),
    ]
    assert {(run.date, run.gpu) for run in suite_runs.runs()} == {("2026-11-28", "H200")}


@pytest.mark.parametrize("cell", models_page.CELLS, ids=lambda cell: cell.suite)
def test_each_cell_of_the_page_has_run(cell: models_page.Cell) -> None:
    """A suite that was renamed, or a log that is gone, would leave a cell without a line."""
    assert suite_runs.latest(cell.suite)
