"""Lines that are of some versions of SGLang alone: counted, so that they stay few.

What serves a feature that a version lacks is not counted, as the host's cache: in other versions it is needed as it is.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

from tessera_patches.inventory import DECLARED
from tessera_testing.imports import modules
from tessera_testing.version_reach import FEATURE

SPECIFIER = re.compile(r"[<>]=?0\.5\.\d|BEFORE_0_5_\d")
HANDLERS = {seam.handler for seam in DECLARED if seam.versions}


def of_some_versions(path: Path, name: str) -> int:
    """Lines, without blank ones: branches and declarations for some versions, and hooks that only these have."""
    text = path.read_text()
    lines = text.splitlines()
    found = {i for i, line in enumerate(lines, start=1) if SPECIFIER.search(line)}
    for node in ast.walk(ast.parse(text)):
        hooks = isinstance(node, ast.FunctionDef) and f"{name}:{node.name}" in HANDLERS
        if isinstance(node, ast.stmt | ast.expr) and (hooks or branches(node)):
            found |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return sum(bool(lines[i - 1].strip()) for i in found)


def branches(node: ast.AST) -> bool:
    """Whether it is a branch by what SGLang has, or a call that is told the versions."""
    if isinstance(node, ast.If | ast.IfExp):
        return FEATURE.search(ast.unparse(node.test)) is not None
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return any(one.arg == "versions" and SPECIFIER.search(ast.unparse(one.value)) for one in keywords)


def test_few_lines_are_of_some_versions_alone() -> None:
    """Without TileSpec, and with it; every handler of a seam of some versions is among them."""
    for handler in HANDLERS:
        module, _, name = handler.partition(":")
        assert callable(getattr(import_module(module), name))
    counted = {name: of_some_versions(path, name) for name, path in modules().items()}
    for branching in ("attention", "cache", "requests"):
        assert counted[f"tessera_patches.engine.{branching}"] > 0
    assert counted["tessera.rows.refusals"] > 0
    for one in ("tessera.client.local_sampling", "tessera_patches.inject.forward"):  # a model's class, or a client's
        assert counted[one] == 0
    assert 0 < sum(count for name, count in counted.items() if "tilespec" not in name) <= 400
    assert sum(counted.values()) <= 1000
