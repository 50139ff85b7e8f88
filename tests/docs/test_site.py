"""The pages as a site: it is built without a warning, has every page, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tessera_testing.pages import DOCS, PAGES, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``make docs`` makes."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


def test_every_page_can_be_found(site: Path) -> None:
    """It is in the navigation."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = {path.relative_to(DOCS).as_posix() for path in PAGES.values() if path.is_relative_to(DOCS)}
    named = set(re.findall(r": ([\w/.-]+\.md)$", navigation, re.MULTILINE))
    assert named - {"index.md"} - {name for name in named if name.startswith("design/log/")} == pages
    for name in named:
        assert (site / name.replace("README.md", "index.md")).with_suffix(".html").is_file(), name


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture: a site works without a network, and tells nobody who reads it."""
    loaded = re.compile(r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="?((?:https?:)?//[^"\s>]+)')
    found = {
        (path.name, url)
        for path in site.rglob("*.html")
        for url in loaded.findall(re.sub(r'<link rel="?canonical"?[^>]*>', "", path.read_text()))
    }
    assert found == set()
