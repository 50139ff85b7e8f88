"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
    if DOCS / "design" / "log" not in path.parents
}
"""All but the log of measurements, by their paths."""
ADDRESS = "http://127.0.0.1:30000"
"""What examples talk to; a test puts its own server in its place."""

CUT = "…"
"""Stands for anything in what a page shows."""

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"(?<=<!-- generated: )([\w./ -]+?) -->\n(.*?)(?=<!-- end -->)", re.DOTALL)
"""A part of a page that is generated: its name, and what stands there."""


class Block(NamedTuple):
    """A block of code, and the block behind it if nothing stands between them."""

    place: str
    language: str
    code: str
    shown_as: str
    shown: str

    @property
    def page(self) -> str:
        """The path of its page."""
        return self.place.partition(":")[0]

    def shows(self, printed: str) -> bool:
        """Whether a text is what the page shows that the code prints."""
        return re.fullmatch(re.escape(self.shown).replace(CUT, ".*"), printed) is not None


def blocks(*languages: str) -> Iterator[Block]:
    """Every block in one of these languages, in order."""
    for name, path in PAGES.items():
        text = path.read_text()
        found = list(FENCE.finditer(text))
        for block, behind in itertools.zip_longest(found, found[1:]):
            _, language, code = block.groups()
            if language in languages:
                follows = behind is not None and not text[block.end() : behind.start()].strip()
                _, shown_as, shown = behind.groups() if follows and behind else ("", "", "")
                place = f"{name}:{text.count(chr(10), 0, block.start()) + 1}"
                yield Block(place, language, code, shown_as, shown)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def by_hand(page: Path) -> str:
    """A page without what is generated; nothing of one that is generated as a whole."""
    text = page.read_text()
    return "" if text.startswith("<!-- Generated: ") else GENERATED.sub("", text)


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body]) + "\n"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
