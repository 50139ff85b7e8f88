"""Which attributes of SGLang's objects hooks touch outside of ``tessera_patches.engine``, and of which class.

The class of an object follows from what hooks call it (`tessera_testing.hook_kinds`), from an annotation, or from what
a function of the adapter returns. Of SGLang's other objects only the attribute's name is known. What a class of ours
that extends one of SGLang's touches of itself is in `tessera_testing.engine_reads.inherited`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from tessera_patches.core import places as paths
from tessera_patches.core.source import Function
from tessera_testing.engine_reads import extended, lineage
from tessera_testing.hook_kinds import FIELDS, IN, KINDS, UNKNOWN
from tessera_testing.patch_source import MARKS, Place, called, modules, places
from tessera_testing.sglang_classes import class_of_field, imported, members

ADAPTER = "tessera_patches.engine"


class Touch(NamedTuple):
    """An attribute of an object of SGLang's that is read, set or looked for.

    Attributes:
        place: where.
        owner: the dotted path of the object's class; `UNKNOWN` if the source does not say.
        attribute: its name.
    """

    place: Place
    owner: str
    attribute: str


def touches(nodes: Iterable[Place] | None = None) -> Iterator[Touch]:
    """Each one of some nodes, by default of all; but for fields of ours that SGLang's objects carry."""
    for place in places() if nodes is None else nodes:
        if place.module.startswith(ADAPTER) or place.function is None:
            continue
        for owner, name in _accesses(place.node):
            found = None if ast.unparse(owner) in {"self", "cls", "super()"} else kind(place, owner)
            if found is not None and not name.startswith(MARKS):
                yield Touch(place, found, name)


def _accesses(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    if isinstance(node, ast.Attribute):
        yield node.value, node.attr
    elif isinstance(node, ast.Call) and called(node) in {"getattr", "hasattr"}:
        owner, name = node.args[:2]
        if isinstance(name, ast.Constant):
            yield owner, str(name.value)


def kind(place: Place, node: ast.expr) -> str | None:
    """The class of SGLang's that an object has, `UNKNOWN`, or None if it is none of SGLang's."""
    found = None
    match node:
        case ast.Name():
            found = _of_name(place, node.id)
        case ast.Attribute():
            found = _of_field(place, node)
        case ast.Call():
            found = _of_call(place, node)
        case ast.Subscript():
            found = None if kind(place, node.value) is None else UNKNOWN
        case ast.Await():
            found = kind(place, node.value)
        case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, *_, other]):
            found = kind(place, one)
            found = kind(place, other) if found is None else found
    return found


def _of_name(place: Place, name: str) -> str | None:
    module = place.module.removeprefix("tessera_patches.")
    called_so = KINDS | IN.get(module, {}) | IN.get(f"{module}:{place.outermost}", {})
    bound = _bindings(place.function) if place.function else {}
    if name not in bound:
        path = imported(modules()[place.module]).get(name, "")
        return KINDS.get(name, path) if path.startswith("sglang.") else None
    annotation, value = bound[name]
    if annotation is not None and ast.unparse(annotation) not in {"Any", "Any | None"}:
        return _annotated(annotation, imported(modules()[place.module]))
    if name in called_so:
        return called_so[name]
    return UNKNOWN if value is None else kind(place, value)


def _of_field(place: Place, node: ast.Attribute) -> str | None:
    if node.attr.startswith(MARKS):
        return None
    if ast.unparse(node.value) == "self":
        ours = {name for own in lineage(place.module, place.outermost)[0] for name in members(own)}
        return FIELDS.get(node.attr, None if node.attr in ours else UNKNOWN)
    owner = kind(place, node.value)
    if owner is None or (owner and node.attr in extended(owner)):
        return None
    return FIELDS.get(node.attr, class_of_field(owner, node.attr) if owner else UNKNOWN)


def _annotated(annotation: ast.expr, names: dict[str, str]) -> str | None:
    """The class of SGLang's that an annotation names. Options have the fields of ``ServerArgs``, as we see them."""
    for node in ast.walk(annotation):
        path = _path(node, names) if isinstance(node, ast.Name | ast.Attribute) else ""
        if path.rpartition(".")[2] == "Resolved":
            return paths.SERVER_ARGS
        if path.startswith("sglang."):
            return path
    return None


def _path(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted path of what an expression names that begins with an import, else the expression."""
    first, _, rest = ast.unparse(node).partition(".")
    return ".".join(filter(None, (names.get(first, first), rest)))


def _of_call(place: Place, node: ast.Call) -> str | None:
    """What a function of the adapter says that it returns; of SGLang's, and of what a hook wraps, it is not known."""
    name = ast.unparse(node.func)
    if name in {"copy.copy", "iter", "aiter", "anext", "next", "reversed", "list"} and node.args:
        return kind(place, node.args[0])
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "super()":
        return UNKNOWN
    path = _path(node.func, imported(modules()[place.module]))
    if path.startswith(ADAPTER):
        return _returned(path)
    if isinstance(node.func, ast.Name):
        if path.startswith("sglang."):
            return path if name[:1].isupper() else UNKNOWN
        return UNKNOWN if name in {"original", "compute", "check"} else None
    return None if kind(place, node.func) is None else UNKNOWN


@cache
def _returned(path: str) -> str | None:
    """The class that a function of the adapter returns, `UNKNOWN` for ``Any``, None where it is none of SGLang's."""
    module, _, name = path.rpartition(".")
    tree = modules()[module]
    found = next(node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef) and node.name == name)
    if isinstance(found, ast.ClassDef) or found.returns is None:
        return None
    names = imported(tree)
    if ast.unparse(found.returns) == "Any":
        return UNKNOWN
    return _annotated(found.returns, names)


@cache
def _bindings(function: ast.AST) -> dict[str, tuple[ast.expr | None, ast.expr | None]]:
    """Annotation and value of each name of a function, and of functions in it, as it is bound first."""
    found: dict[str, tuple[ast.expr | None, ast.expr | None]] = {}
    for node in ast.walk(function):
        for name, annotation, value in _bound(node):
            found.setdefault(name, (annotation, value))
    return found


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    if isinstance(node, ast.arguments):
        yield from _arguments(node)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.annotation, node.value
    else:
        for target, value in _assigned(node):
            yield from _unpacked(target, value)


def _arguments(node: ast.arguments) -> Iterator[tuple[str, ast.expr | None, None]]:
    for arg in (*node.posonlyargs, *node.args, *node.kwonlyargs):
        yield arg.arg, arg.annotation, None
    for arg in filter(None, (node.vararg, node.kwarg)):
        yield arg.arg, ast.Name("tuple"), None


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [(node.target, node.iter)]
    if isinstance(node, ast.NamedExpr):
        return [(node.target, node.value)]
    return [(node.optional_vars, node.context_expr)] if isinstance(node, ast.withitem) and node.optional_vars else []


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, None, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, None, value
    elif isinstance(target, ast.Tuple):
        same = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        values = value.elts if same and isinstance(value, ast.Tuple) else [value] * len(target.elts)
        for part, own in zip(target.elts, values, strict=True):
            yield from _unpacked(part, own)
