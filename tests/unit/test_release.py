"""What names a version says the one that the package has; what an index shows of it can be read there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import tessera
from tessera_patches.support import DEFAULT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "pattern", "version"),
    [
        ("examples/deploy/Dockerfile", r"^ARG SGLANG=v(.+)$", DEFAULT),
        ("examples/deploy/compose.yaml", r"sglang-tessera:(.+)$", tessera.__version__),
        ("examples/deploy/kubernetes.yaml", r"sglang-tessera:(.+)$", tessera.__version__),
        ("CHANGELOG.md", r"^## \[(\d.+?)\] - \d{4}-\d\d-\d\d$", tessera.__version__),
    ],
)
def test_versions_agree(path: str, pattern: str, version: str) -> None:
    """The newest one that a file has."""
    found = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    assert found[0] == version


def test_an_index_shows_no_dead_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """README.md is the description there, and the files that it links to are not."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", arguments.update)
    runpy.run_path(str(ROOT / "setup.py"))
    links = re.findall(r"\]\(([^)]+)\)", arguments["long_description"])
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
