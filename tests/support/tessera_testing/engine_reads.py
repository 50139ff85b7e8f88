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
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

from tessera_patches.core.source import Function
from tessera_testing.patch_source import PATCHES, called, modules, root

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
        imported = _imported(ast.parse(path.read_text(encoding="utf-8")))
        for own in _definitions(module):
            tree = ast.parse(textwrap.dedent(inspect.getsource(own)))
            for owner, attribute in _accesses(tree, imported):
                yield Read(f"{path.stem}.{own.__name__}", owner, attribute)


def inherited() -> Iterator[Read]:
    """Every attribute that a class of the patches has from one of SGLang's, and every method of that which it calls."""
    for module, tree in modules().items():
        imported = _imported(tree)
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        for name, node in classes.items():
            own, bases = _with_bases(node, classes, imported)
            names = _attributes_of("self", node) - own | _attributes_of("super()", node) - {"__init__"}
            yield from (Read(f"{module}.{name}", path, attribute) for path in bases for attribute in names)


def given(module: str, owner: str) -> set[str]:
    """The fields that one of SGLang's modules sets of an object that it calls so."""
    found = (one for one in ast.walk(_module(module)) if isinstance(one, ast.Attribute))
    return {one.attr for one in found if isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == owner}


def _attributes_of(name: str, node: ast.AST) -> set[str]:
    found = (one for one in ast.walk(node) if isinstance(one, ast.Attribute))
    return {one.attr for one in found if ast.unparse(one.value) == name}


def _with_bases(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], imported: dict[str, str]
) -> tuple[set[str], list[str]]:
    """What a class defines, with those of its module that it extends; SGLang's classes that these extend."""
    own = _members(node)
    paths: list[str] = []
    for base in node.bases:
        text = ast.unparse(base)
        if text in classes:
            more, above = _with_bases(classes[text], classes, imported)
            own, paths = own | more, paths + above
        else:
            first, _, rest = text.partition(".")
            paths += [".".join(filter(None, (imported.get(first, ""), rest)))]
    return own, [path for path in paths if path.startswith("sglang.")]


def _definitions(module: ModuleType) -> list[FunctionType | type]:
    found = [one for one in vars(module).values() if inspect.isfunction(one) or inspect.isclass(one)]
    return [one for one in found if one.__module__ == module.__name__]


def _imported(tree: ast.Module) -> dict[str, str]:
    """The dotted path of each name that a module imports, also for type checkers only."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.asname or name.name: name.name for name in node.names}
    return found


def _accesses(tree: ast.AST, imported: dict[str, str]) -> Iterator[tuple[str, str]]:
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
            yield from ((path, name) for path in _classes(types[text], imported))
        elif text != "self" and root(owner) not in {*imported, *dir(builtins)}:
            yield "", name


def _classes(annotation: ast.expr, imported: dict[str, str]) -> list[str]:
    """SGLang's classes in an annotation; [""] if it says nothing: ``Any`` alone, or a name that is not known."""
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    found = [imported[name] for name in sorted(names) if imported.get(name, "").startswith("sglang.")]
    unknown = names == {"Any"} or not names <= {*imported, *dir(builtins)}
    return [""] if unknown else found


@cache
def attributes(path: str) -> frozenset[str]:
    """Fields, methods and properties of one of SGLang's classes and its bases, read from source.

    Args:
        path: the dotted path of the class, or of a module that imports it.

    Raises:
        LookupError: there is no such class.
    """
    module, _, name = path.rpartition(".")
    tree = _module(module)
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    imported = _imported(tree)
    if found is None:
        if name not in imported:
            raise LookupError(f"no class {path}")
        return attributes(imported[name])
    names = _members(found)
    names |= _computed(tree) if "__getattr__" in names else set()
    for base in found.bases:
        first, _, rest = ast.unparse(base).partition(".")
        above = ".".join(filter(None, (imported.get(first, f"{module}.{first}"), rest)))
        names |= attributes(above) if above.startswith("sglang.") and _is_defined(above) else frozenset()
    return frozenset(names)


def _members(found: ast.ClassDef) -> set[str]:
    """Fields, methods and properties that a class defines."""
    names = {node.name for node in found.body if isinstance(node, Function)}
    for node in ast.walk(found):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    for node in found.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _computed(tree: ast.Module) -> set[str]:
    """What a class may have that computes attributes: it makes them of names that its module lists."""
    return {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def _is_defined(path: str) -> bool:
    """Whether a base is SGLang's: ``ABC`` is not, nor is a builtin."""
    module, _, name = path.rpartition(".")
    tree = _module(module)
    return name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)} | set(_imported(tree))


@cache
def _module(name: str) -> ast.Module:
    spec = find_spec("sglang")
    folder = Path(*(spec.submodule_search_locations or ()) if spec else ())
    path = folder.joinpath(*name.split(".")[1:])
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
