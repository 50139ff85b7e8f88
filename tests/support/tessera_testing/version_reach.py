"""Which handlers come to code that is of some versions of SGLang alone, as their source says.

Followed are names: functions, classes with all their methods, constants, through imports. Not followed are the handlers
of other seams, and classes that these put in place of SGLang's: those have entries of their own. What a handler calls
by an object's method is not found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tessera_patches.inventory import DECLARED
from tessera_testing.imports import modules

FEATURE = re.compile(
    r"hasattr\([A-Z]\w+, |find_spec\('sglang|OWN_WIDTHS|SELECTS_ROWS"
    r"|^'\w+' in (signature\(|[A-Z]\w+\.__dataclass_fields__)"
)
"""Whether this SGLang has something: an attribute, a module, a parameter, a field, or what the adapter found out."""
SINCE = re.compile(r"[Ss]ince 0\.5\.\d|[Uu]p to 0\.5\.\d")
"""In the docstring of a function of the adapter that reads what some versions have."""
ADAPTER = "tessera_patches.engine."
READS = frozenset(
    (
        *("resolved", "is_resolved", "row_of", "committed", "is_first", "replica"),
        *("pools_logits", "changes_logits", "generate_handler"),
    )
)
"""Functions of the adapter that find the same value in another place: a handler that has these alone does the same."""


class Name(NamedTuple):
    """Something that a module defines."""

    module: str
    name: str


class _Module:
    """What a module defines, and imports from others of ours."""

    def __init__(self, name: str, tree: ast.Module, ours: frozenset[str]) -> None:
        self.name = name
        self.defined: dict[str, list[ast.stmt]] = {}
        self.apart: set[str] = set()
        self.imported: dict[str, Name] = {}
        self._read(tree.body, apart=False)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    if node.module in ours or f"{node.module}.{one.name}" in ours:
                        self.imported[one.asname or one.name] = Name(node.module, one.name)

    def _read(self, body: list[ast.stmt], *, apart: bool) -> None:
        for node in body:
            if isinstance(node, ast.If):
                branches = FEATURE.search(ast.unparse(node.test)) is not None
                self._read([*node.body, *node.orelse], apart=apart or branches)
            for name in _names(node):
                self.defined.setdefault(name, []).append(node)
                if apart or (_of_some_versions(node) if self.name.startswith(ADAPTER) else _branches(node)):
                    self.apart.add(name)

    def used(self, name: str) -> Iterator[Name]:
        """What the definitions of a name mention."""
        for node in (part for own in self.defined.get(name, ()) for part in ast.walk(own)):
            if isinstance(node, ast.Name):
                yield self._resolve(node.id)
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.imported
            ):
                yield Name(".".join(self.imported[node.value.id]), node.attr)

    def _resolve(self, name: str) -> Name:
        return Name(self.name, name) if name in self.defined else self.imported.get(name, Name(self.name, name))


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _of_some_versions(node: ast.stmt) -> bool:
    """A constant that says what this SGLang has, or a function whose docstring says since when it has it."""
    if isinstance(node, ast.FunctionDef):
        return SINCE.search(ast.get_docstring(node) or "") is not None
    value = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
    return re.search(r"hasattr\([A-Z]\w+, |signature\(|__dataclass_fields__", value) is not None


def _branches(node: ast.stmt) -> bool:
    """A definition outside of the adapter that itself looks at what this SGLang has."""
    tests = (part.test for part in ast.walk(node) if isinstance(part, ast.If | ast.IfExp))
    return any(FEATURE.search(ast.unparse(test)) for test in tests)


def _put_in_place(module: _Module, name: str) -> set[Name]:
    """The classes that a handler gives objects, and the handler itself."""
    nodes = [part for own in module.defined.get(name, ()) for part in ast.walk(own)]
    calls = [one for one in nodes if isinstance(one, ast.Call) and ast.unparse(one.func) == "change_class"]
    named = {one.id for call in calls for one in ast.walk(call.args[2]) if isinstance(one, ast.Name)}
    return {Name(module.name, one) for one in (*named, name)}


def reached() -> dict[str, set[str]]:
    """By handler that does, the names of the adapter's of some versions alone that it comes to."""
    adapted = {
        handler: {one.name for one in names if one.module.startswith(ADAPTER)} for handler, names in _reached().items()
    }
    return {handler: names for handler, names in adapted.items() if names}


def differing_themselves() -> set[str]:
    """The handlers whose own code, outside of the adapter, does something else in some versions."""
    return {
        handler for handler, names in _reached().items() if not all(one.module.startswith(ADAPTER) for one in names)
    }


@cache
def _reached() -> dict[str, set[Name]]:
    ours = modules()
    found = {name: _Module(name, ast.parse(path.read_text()), frozenset(ours)) for name, path in ours.items()}
    handlers = {seam.handler: Name(*seam.handler.split(":")) for seam in DECLARED}
    own = {handler: _put_in_place(found[name.module], name.name) for handler, name in handlers.items()}
    result = {}
    for handler, start in handlers.items():
        others = set().union(*(names for one, names in own.items() if one != handler)) - own[handler]
        todo, seen, apart = [start], {start}, set[Name]()
        while todo:
            one = todo.pop()
            module = found[one.module]
            if one.name in module.apart:
                apart.add(one)
            nexts = {module.imported[one.name]} if one.name in module.imported else set(module.used(one.name))
            new = {name for name in nexts if name.module in found} - seen - others
            seen |= new
            todo += new
        if apart:
            result[handler] = apart
    return result
