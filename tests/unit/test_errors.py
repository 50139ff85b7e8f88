"""Messages: what stands in the place of a value, and what is one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tessera
import tessera_patches
from tessera import errors
from tessera.errors import BadRequest, Described

FOLDERS = [Path(str(package.__file__)).parent for package in (tessera, tessera_patches)]
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BadRequest)}


def test_descriptions_are_shown_without_quotes() -> None:
    """A text of the client has them."""
    assert str(BadRequest("text", "2 prompts", "one")) == "text: got '2 prompts'; allowed: one"
    assert str(BadRequest("text", Described("2 prompts"), "one")) == "text: got 2 prompts; allowed: one"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_texts_that_we_write_are_described(folder: Path) -> None:
    """A text in the source, in the place of a value, is none that a client sent."""
    places = [place for path in sorted(folder.rglob("*.py")) for place in _written_values(path)]
    assert not places


def _written_values(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in KINDS or len(node.args) < 2:
            continue
        value = node.args[1]
        if isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            yield f"{path.name}:{value.lineno}: {ast.unparse(value)}"
