"""What our patches change of SGLang's objects, read from their source.

Objects have no types here, so what is a field of SGLang's is found by where the object comes from: all are but those of
``self``, of a module or an annotated class that is not SGLang's, and of what a class or function of ours returns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tessera_patches.core.source import Definition, Function

PATCHES = Path(__file__).parents[3] / "patches"
MARKS = ("tessera_", "_tessera_")
"""How fields begin that SGLang's objects carry for us; it has none of these names."""
_LOGIC = {"tessera", "tessera_kernels"}
"""Packages whose functions return objects of ours; those of the patches may return SGLang's."""
_HTTP = {"fastapi", "starlette"}
"""Libraries whose objects, as its application, SGLang made and hands to us."""
_ADAPTER = "tessera_patches.engine"
_MUTATORS = {"append", "clear", "extend", "insert", "pop", "remove", "add", "discard", "update", "setdefault"}
_REWRITERS = {"show", "hide"}
"""Our methods that rewrite their array argument in place."""


class Place(NamedTuple):
    """A node of a module, and what it is in.

    Attributes:
        module: its dotted path.
        outermost: the function or class of the module that it is in, "" if none.
        function: the function or method that it is in, the outermost one.
        node: itself.
    """

    module: str
    outermost: str
    function: ast.FunctionDef | ast.AsyncFunctionDef | None
    node: ast.AST

    @property
    def handler(self) -> str:
        """As `tessera_patches.core.seam.Seam.handler` names it."""
        return f"{self.module}:{self.outermost}"

    def __str__(self) -> str:
        return f"{self.module}:{getattr(self.node, 'lineno', 0)}: {ast.unparse(self.node):.120}"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the patches outside of core, by its dotted path."""
    paths = [path for path in (PATCHES / "tessera_patches").rglob("*.py") if path.parent.name != "core"]
    return {".".join(path.relative_to(PATCHES).with_suffix("").parts): ast.parse(path.read_text()) for path in paths}


@cache
def places() -> list[Place]:
    """Every node of them."""
    return [place for module, tree in modules().items() for place in _below(Place(module, "", None, tree))]


def _below(place: Place) -> Iterator[Place]:
    for node in ast.iter_child_nodes(place.node):
        outermost = place.outermost or (node.name if isinstance(node, Definition) else "")
        function = place.function or (node if isinstance(node, Function) else None)
        child = Place(place.module, outermost, function, node)
        yield child
        yield from _below(child)


def definition(handler: str) -> Definition:
    """The function or class that ``module:name`` is."""
    module, name = handler.split(":")
    return next(node for node in modules()[module].body if isinstance(node, Definition) and node.name == name)


def called(node: ast.AST) -> str:
    """The last name of what a call calls; "" of anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with; "" where it is no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@cache
def origins(module: str) -> dict[str, str]:
    """Which module each name of a module is from; of its own classes itself."""
    own = {node.name: module for node in modules()[module].body if isinstance(node, ast.ClassDef)}
    return own | imports(modules()[module])


def imports(tree: ast.Module) -> dict[str, str]:
    """Which module each name is from that a module imports."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = "tessera" if node.level else str(node.module)
            found |= {name.asname or name.name: origin for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.asname or name.name.split(".")[0]: name.name for name in node.names}
    return found


def constant(module: str, name: str) -> str:
    """The text that a module's constant is, or one that it imports from the patches; "" if it is none."""
    tree = modules().get(origins(module).get(name, module))
    for node in tree.body if tree else ():
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and ast.unparse(node.targets[0]) == name
        ):
            return str(node.value.value)
    return ""


def is_mark(place: Place, name: ast.expr) -> bool:
    """Whether the name of a field, written out or a constant, is one of ours on an object of SGLang's."""
    text = str(name.value) if isinstance(name, ast.Constant) else constant(place.module, ast.unparse(name))
    return text.startswith(MARKS)


def extends_sglang(module: str, base: ast.expr) -> bool:
    """Whether a base class is SGLang's, or a class of the patches that extends one."""
    where = origins(module).get(root(base), "")
    if where in modules():
        own = definition(f"{where}:{ast.unparse(base)}")
        return isinstance(own, ast.ClassDef) and any(extends_sglang(where, above) for above in own.bases)
    return where.partition(".")[0] == "sglang"


def is_sglangs(place: Place, field: ast.Attribute) -> bool:
    """Whether an object whose field is set, or may be, is SGLang's."""
    name = root(field)
    if name in {"self", "cls"}:
        return not isinstance(field.value, ast.Name)
    origin = origins(place.module).get(name) or _made_by(place, name)
    return origin.partition(".")[0] in {"", "sglang", *_HTTP}


def _made_by(place: Place, name: str) -> str:
    """The module whose class a name of a function is annotated with, or an object of; "" where nothing says so."""
    names = origins(place.module)
    for node in ast.walk(place.function) if place.function else ():
        if isinstance(node, ast.arg) and node.arg == name and node.annotation is not None:
            return _annotated(place, node.annotation)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            return _annotated(place, node.annotation)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            made = node.value.args[0] if called(node.value) == "as_subclass" else node.value.func
            origin = names.get(root(made), "")
            is_class = root(made).lstrip("_")[:1].isupper()
            return origin if is_class or origin.partition(".")[0] in _LOGIC else ""
    return ""


def _annotated(place: Place, annotation: ast.expr) -> str:
    parts = [part for part in ast.walk(annotation) if isinstance(part, ast.Name) and part.id != "Any"]
    return next((_above(place.module, part) for part in parts if part.id in origins(place.module)), "")


def _above(module: str, name: ast.Name) -> str:
    """The module of a class, or that of SGLang's class which it extends."""
    return "sglang" if extends_sglang(module, name) else origins(module)[name.id]


def is_copy(place: Place, name: str) -> bool:
    """Whether a name of a function is a copy, which SGLang does not have."""
    made = [node for node in ast.walk(place.function) if isinstance(node, ast.Assign)] if place.function else []
    return any(ast.unparse(node.targets[0]) == name and called(node.value) == "copy" for node in made)


def rewritten(place: Place) -> Iterator[ast.Attribute]:
    """Fields of SGLang's objects whose list, dict, array or tensor a node rewrites in place.

    Not what an element holds (``req.a[0][1] = 2``), nor what is in a parameter or comes from a call, but for the
    adapter's functions: their results are SGLang's fields.
    """
    node = place.node
    containers: list[ast.expr] = []
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        containers = [node.value]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _rewrites_its_object(called(node)):
        containers = [node.func.value]
    elif called(node) in _REWRITERS and isinstance(node, ast.Call):
        containers = node.args
    for container in containers:
        yield from (field for field in _fields(place, container) if _holds(place, field))


def _fields(place: Place, container: ast.expr) -> list[ast.Attribute]:
    """The field that holds a container, or the fields that a function of the adapter may have it from."""
    if isinstance(container, ast.Name):
        values = [value for target, value in _bound(place.function) if target == container.id]
        return [field for value in values if not isinstance(value, ast.Name) for field in _fields(place, value)]
    if isinstance(container, ast.Subscript) and isinstance(container.slice, ast.Slice | ast.Tuple):  # a tensor's view
        return _fields(place, container.value)
    if isinstance(container, ast.Call):
        module = origins(place.module).get(called(container), "")
        own = [node for node in ast.walk(modules()[module]) if isinstance(node, Function)] if _adapts(module) else []
        return _returned_fields(own, called(container))
    return [container] if isinstance(container, ast.Attribute) else []


def _returned_fields(functions: list[ast.FunctionDef | ast.AsyncFunctionDef], name: str) -> list[ast.Attribute]:
    """The fields in what a function returns, or in what it calls for that; else all that it reads."""
    found = [node for one in functions if one.name == name for node in ast.walk(one)]
    values = [one.value for one in found if isinstance(one, ast.Return) and one.value is not None]
    fields = [node for value in values for node in ast.walk(value) if isinstance(node, ast.Attribute)]
    for value in values:
        if isinstance(value, ast.Call) and called(value) != name:
            fields += _returned_fields(functions, called(value))
    return fields or [node for node in found if isinstance(node, ast.Attribute)]


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> Iterator[tuple[str, ast.expr]]:
    """Each name that a function binds, and to what: of several values to all, of a loop to what it goes over."""
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.Assign | ast.For):
            target, value = (node.targets[0], node.value) if isinstance(node, ast.Assign) else (node.target, node.iter)
            yield from ((one.id, value) for one in ast.walk(target) if isinstance(one, ast.Name))


def _rewrites_its_object(method: str) -> bool:
    """Containers' methods, and torch's, whose names end with an underscore."""
    return method in _MUTATORS or (method.endswith("_") and not method.endswith("__"))


def _adapts(module: str) -> bool:
    return module.startswith(_ADAPTER) and module in modules()


def _holds(place: Place, field: ast.Attribute) -> bool:
    """Whether a field belongs to SGLang: our subclasses of its classes own the fields that they set themselves."""
    if ast.unparse(field.value) != "self":
        return bool(root(field)) and is_sglangs(place, field)
    kind = definition(place.handler)
    own = {ast.unparse(node) for node in ast.walk(kind) if isinstance(node, ast.Attribute) and _is_set(node)}
    extends = isinstance(kind, ast.ClassDef) and any(extends_sglang(place.module, base) for base in kind.bases)
    return extends and ast.unparse(field) not in own


def _is_set(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)
