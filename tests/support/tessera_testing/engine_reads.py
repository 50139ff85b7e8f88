"""Which attributes of SGLang's classes ``tessera_patches.engine`` touches, from its source.

Arguments and variables of its functions are annotated with SGLang's classes. Of a function with several definitions,
for different versions of SGLang, the one that this process uses counts.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

from tessera_testing.patch_source import PATCHES, called, modules, root
from tessera_testing.sglang_classes import classes_in, imported, members

ENGINE = PATCHES / "tessera_patches/engine"


class Read(NamedTuple):
    """An access of an attribute.

    Attributes:
        function: the adapter's function or class, with its module.
        owner: the dotted path of SGLang's class that the object has; "" if the source does not say.
        attribute: its name.
    """

    function: str
    owner: str
    attribute: str


def reads(folder: Path = ENGINE) -> Iterator[Read]:
    """Every access in the functions and classes of the adapter."""
    for path in sorted(folder.glob("[!_]*.py")):
        module = import_module(f"tessera_patches.engine.{path.stem}")
        names = imported(ast.parse(path.read_text(encoding="utf-8")))
        for own in _definitions(module):
            tree = ast.parse(textwrap.dedent(inspect.getsource(own)))
            for owner, attribute in _accesses(tree, names):
                yield Read(f"{path.stem}.{own.__name__}", owner, attribute)


def inherited() -> Iterator[Read]:
    """Every attribute that a class of the patches has from one of SGLang's, and every method of that which it calls.

    A mixin's are those of the classes that extend it and one of SGLang's.
    """
    for module, tree in modules().items():
        for name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]:
            ours, above = lineage(module, name)
            own = set().union(*map(members, ours))
            names = set().union(*(_attributes_of("self", node) - own for node in ours))
            names |= set().union(*(_attributes_of("super()", node) for node in ours)) - {"__init__"} - _last_of(ours)
            yield from (Read(f"{module}.{name}", path, attribute) for path in above for attribute in names)


def _last_of(ours: list[ast.ClassDef]) -> set[str]:
    """Methods that do not call the one above: SGLang's class need not have it."""
    return set().union(*(members(node) - _attributes_of("super()", node) for node in ours))


def lineage(module: str, name: str) -> tuple[list[ast.ClassDef], list[str]]:
    """A class of the patches with those of ours that it extends; the dotted paths of SGLang's that these extend."""
    tree = modules()[module]
    node = next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
    ours, above = [node], list[str]()
    for base in node.bases:
        first, _, rest = ast.unparse(base).partition(".")
        path = ".".join(filter(None, (imported(tree).get(first, f"{module}.{first}"), rest)))
        where, _, kind = path.rpartition(".")
        if where in modules() and kind in {one.name for one in modules()[where].body if isinstance(one, ast.ClassDef)}:
            more, further = lineage(where, kind)
            ours, above = ours + more, above + further
        elif path.startswith("sglang."):
            above.append(path)
    return ours, above


def extended(path: str) -> set[str]:
    """What classes of the patches define that extend one of SGLang's."""
    found: set[str] = set()
    for module, tree in modules().items():
        for name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]:
            ours, above = lineage(module, name)
            if path in above:
                found = found.union(*map(members, ours))
    return found


def _attributes_of(name: str, node: ast.AST) -> set[str]:
    found = (one for one in ast.walk(node) if isinstance(one, ast.Attribute))
    return {one.attr for one in found if ast.unparse(one.value) == name}


def _definitions(module: ModuleType) -> list[FunctionType | type]:
    found = [one for one in vars(module).values() if inspect.isfunction(one) or inspect.isclass(one)]
    return [one for one in found if one.__module__ == module.__name__]


def _accesses(tree: ast.AST, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Class and name of each attribute; modules, and objects that are not SGLang's, are left out: ``self`` as well."""
    types = {
        node.arg if isinstance(node, ast.arg) else ast.unparse(node.target): node.annotation
        for node in ast.walk(tree)
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, name = node.value, node.attr
        elif isinstance(node, ast.Call) and called(node) == "getattr" and isinstance(node.args[1], ast.Constant):
            owner, name = node.args[0], str(node.args[1].value)
        else:
            continue
        text = ast.unparse(owner)
        if text in types:
            yield from ((path, name) for path in classes_in(types[text], names))
        elif text != "self" and root(owner) not in {*names, *dir(builtins)}:
            yield "", name
