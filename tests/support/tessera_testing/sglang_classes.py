"""SGLang's classes as its source has them: their attributes, and the classes of their fields."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tessera_patches.core.source import Function


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
    names_of = imported(tree)
    if found is None:
        if name not in names_of:
            raise LookupError(f"no class {path}")
        return attributes(names_of[name])
    names = members(found)
    names |= _computed(tree) if "__getattr__" in names else set()
    names |= {"_replace"} if "NamedTuple" in map(ast.unparse, found.bases) else set()
    for base in found.bases:
        first, _, rest = ast.unparse(base).partition(".")
        above = ".".join(filter(None, (names_of.get(first, f"{module}.{first}"), rest)))
        names |= attributes(above) if above.startswith("sglang.") and _is_defined(above) else frozenset()
    return frozenset(names)


def class_of_field(path: str, name: str) -> str:
    """The dotted path of the class of SGLang's that a field of one of its classes has; "" where its source says none.

    It is the field's annotation, that of the argument which it is set to, or what a property returns.
    """
    module, _, owner = path.rpartition(".")
    if not is_module(module):  # a class in another one
        return ""
    tree = _module(module)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    names = {one: f"{module}.{one}" for one in classes} | imported(tree)
    if owner not in classes:
        return class_of_field(names[owner], name) if names.get(owner, "").startswith("sglang.") else ""
    annotated = [one for annotation in _annotations(classes[owner], name) for one in classes_in(annotation, names)]
    above = [names.get(ast.unparse(base), "") for base in classes[owner].bases]
    annotated += [class_of_field(base, name) for base in above if base.startswith("sglang.")]
    return next(filter(None, annotated), "")


def _annotations(owner: ast.ClassDef, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in {name, f"self.{name}"}:
            yield _unquoted(node.annotation)
        elif isinstance(node, Function):
            yield from map(_unquoted, filter(None, _annotated_by(node, name)))


def _annotated_by(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[ast.expr | None]:
    if function.name == name:
        yield function.returns
    arguments = {arg.arg: arg.annotation for arg in (*function.args.args, *function.args.kwonlyargs)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
            yield arguments.get(ast.unparse(node.value))


def _unquoted(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def given(module: str, owner: str) -> set[str]:
    """The fields that one of SGLang's modules sets of an object that it calls so."""
    found = (one for one in ast.walk(_module(module)) if isinstance(one, ast.Attribute))
    return {one.attr for one in found if isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == owner}


def members(found: ast.ClassDef) -> set[str]:
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


@cache
def imported(tree: ast.Module) -> dict[str, str]:
    """The dotted path of each name that a module imports, also for type checkers only."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.asname or name.name: name.name for name in node.names}
    return found


def classes_in(annotation: ast.expr, imports: dict[str, str]) -> list[str]:
    """SGLang's classes in an annotation; [""] if it says nothing: ``Any`` alone, or a name that is not known."""
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    found = [imports[name] for name in sorted(names) if imports.get(name, "").startswith("sglang.")]
    unknown = names == {"Any"} or not names <= {*imports, *dir(builtins)}
    return [""] if unknown else found


def _computed(tree: ast.Module) -> set[str]:
    """What a class may have that computes attributes: it makes them of names that its module lists."""
    return {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def _is_defined(path: str) -> bool:
    """Whether a base is SGLang's: ``ABC`` is not, nor is a builtin."""
    module, _, name = path.rpartition(".")
    tree = _module(module)
    return name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)} | set(imported(tree))


def is_module(path: str) -> bool:
    """Whether a dotted path is one of SGLang's modules."""
    return _file(path).is_file()


def _file(path: str) -> Path:
    spec = find_spec("sglang")
    folder = Path(*(spec.submodule_search_locations or ()) if spec else ()).joinpath(*path.split(".")[1:])
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(_file(name).read_text(encoding="utf-8"))
