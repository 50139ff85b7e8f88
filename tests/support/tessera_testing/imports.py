"""Which of our modules imports which, from their source: also inside functions, and under ``TYPE_CHECKING``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = {
    "tessera": ROOT / "python/tessera",
    "tessera_kernels": ROOT / "sgl-kernel/tessera_kernels",
    "tessera_patches": ROOT / "patches/tessera_patches",
}


def modules() -> dict[str, Path]:
    """Every module of ours by its name; a package is its ``__init__.py``."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imports() -> dict[str, set[str]]:
    """The modules of ours that each one names in its import statements."""
    paths = modules()
    return {name: set(_imports(name, path, paths)) - {name} for name, path in paths.items()}


def _imports(name: str, path: Path, paths: Mapping[str, Path]) -> Iterator[str]:
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in paths)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            for alias in node.names:
                target = f"{base}.{alias.name}"
                if target in paths or base in paths:
                    yield target if target in paths else base
