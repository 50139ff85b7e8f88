"""Raw results of measurements: a page says what each of them shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tessera_testing.pages import DOCS, ROOT

RESULTS = ROOT / "benchmarks" / "results" / "current"
PAGES = {page: page.read_text() for folder in (DOCS, ROOT / "benchmarks") for page in folder.rglob("*.md")}


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
