"""Read SGLang's source without importing it: signatures, callers, fields, hashes of syntax trees.

Functions that take a dotted path read the installed packages, or those in the folder ``root``.
"""

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

Function = ast.FunctionDef | ast.AsyncFunctionDef
Variable = ast.Assign | ast.AnnAssign
"""The statement that sets a module's variable."""
Definition = Function | ast.ClassDef
_Scope = ast.Module | Definition


class SourceMissing(Exception):
    """SGLang, a module, or a definition in it is not there."""


@cache
def _module(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _package_root(name: str, root: Path | None = None) -> Path:
    if root is not None:
        return root / name
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SourceMissing(f"{name} is not installed")
    return Path(spec.submodule_search_locations[0])


def find(target: str, root: Path | None = None) -> Definition:
    """The definition behind a dotted path such as ``sglang.srt.server_args.ServerArgs.__post_init__``.

    Raises:
        SourceMissing: no such module, function or class.
    """
    found = statement(target, root)
    if isinstance(found, Variable):
        raise SourceMissing(f"{target} is a variable")
    return found


def statement(target: str, root: Path | None = None) -> Definition | Variable:
    """The definition behind a dotted path, or the statement that sets a module's variable.

    Raises:
        SourceMissing: no such module or name in it.
    """
    path, names = _file(target, root)
    scope: _Scope | Variable = _module(path)
    for name in names:
        scope = _child(scope, name, target)
    if isinstance(scope, ast.Module):
        raise SourceMissing(f"{target} is a module")
    return scope


def _file(target: str, root: Path | None) -> tuple[Path, list[str]]:
    """The module's file, and the rest of the dotted path."""
    package, *parts = target.split(".")
    path = _package_root(package, root)
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if parts and (path / f"{parts[0]}.py").is_file():
        return path / f"{parts.pop(0)}.py", parts
    if parts and (path / "__init__.py").is_file():
        return path / "__init__.py", parts
    raise SourceMissing(f"no module for {target}")


def lines(target: str, root: Path | None = None) -> list[str]:
    """The lines of a definition, or of a statement that sets a module's variable, as they are in its file.

    Raises:
        SourceMissing: as `statement`.
    """
    node = statement(target, root)
    if node is _CONSTRUCTOR:
        return ast.unparse(node).splitlines()
    decorators = [] if isinstance(node, Variable) else node.decorator_list
    first = min(part.lineno for part in (node, *decorators))
    path, _ = _file(target, root)
    return path.read_text().splitlines()[first - 1 : node.end_lineno]


def _child(scope: _Scope | Variable, name: str, target: str) -> Definition | Variable:
    nodes = [] if isinstance(scope, Variable) else scope.body
    found = [node for node in nodes if isinstance(node, Definition | Variable) and name in _names(node)]
    if found:
        return found[0] if _is_property(found[0]) else _last_function(found)
    if name == "__init__" and isinstance(scope, ast.ClassDef) and _is_dataclass(scope):
        return _CONSTRUCTOR
    raise SourceMissing(f"{target} is not there (no {name})")


def _last_function(found: list[Definition | Variable]) -> Definition | Variable:
    """Several functions of one name: the last, as Python binds it. Other definitions, as of a class: the first."""
    return found[-1] if all(isinstance(node, Function) for node in found) else found[0]


def _is_property(node: Definition | Variable) -> bool:
    """Whether functions of the same name set or delete what this one gets."""
    return isinstance(node, Function) and any(ast.unparse(one).endswith("property") for one in node.decorator_list)


def _names(node: Definition | Variable) -> list[str]:
    """What a statement defines."""
    if isinstance(node, Variable):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return [node.name]


def setters(field: str, root: Path | None = None) -> list[str]:
    """Which methods of a class set a field, in order, and first the class itself where it declares it.

    Args:
        field: the class's dotted path, and the field's name.
        root: see above.

    Raises:
        SourceMissing: no such module or class, or nothing in it sets such a field.
    """
    owner, name = field.rsplit(".", 1)
    scope = find(owner, root)
    if not isinstance(scope, ast.ClassDef):
        raise SourceMissing(f"{owner} is no class")
    declared = [scope.name for node in scope.body if isinstance(node, Variable) and name in _names(node)]
    methods = [node for node in scope.body if isinstance(node, Function)]
    found = [*declared[:1], *(method.name for method in methods if _sets(method, name))]
    if not found:
        raise SourceMissing(f"{field} is not there (nothing in {scope.name} sets it)")
    return found


def _sets(method: Function, name: str) -> bool:
    nodes = (node for node in ast.walk(method) if isinstance(node, ast.Attribute) and node.attr == name)
    return any(isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self" for node in nodes)


_CONSTRUCTOR = cast("ast.FunctionDef", ast.parse("def __init__(self, **fields): ...").body[0])
"""The constructor of a dataclass. Python makes it of the fields; a wrapper passes them on, whatever they are."""


def _is_dataclass(scope: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in scope.decorator_list)


def parameters(definition: Definition) -> list[str]:
    """Names of the parameters, in order; of a class, the names of its annotated fields."""
    if isinstance(definition, ast.ClassDef):
        return [
            node.target.id
            for node in definition.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
    arguments = definition.args
    named = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [argument.arg for argument in named if argument is not None]


def is_async(definition: Definition) -> bool:
    """Whether it is an ``async def``, which SGLang's wrapper of it is not."""
    return isinstance(definition, ast.AsyncFunctionDef)


def calls(definition: Definition, name: str) -> bool:
    """Whether the body calls something named ``name``: ``f(...)``, ``x.f(...)``, or a kernel, ``f[grid](...)``."""
    called = (node.func for node in ast.walk(definition) if isinstance(node, ast.Call))
    names = (f.value if isinstance(f, ast.Subscript) else f for f in called)
    return any(_last_name(node) == name for node in names)


def passes_on(definition: Definition, name: str) -> bool:
    """Whether the body passes something named ``name`` on, as an argument or in a tuple, for others to call."""
    nodes = list(ast.walk(definition))
    tuples = [element for node in nodes if isinstance(node, ast.Tuple) for element in node.elts]
    called = [node for node in nodes if isinstance(node, ast.Call)]
    arguments = [value for call in called for value in (*call.args, *(keyword.value for keyword in call.keywords))]
    return any(_last_name(node) == name for node in tuples + arguments)


def _last_name(node: ast.expr) -> str | None:
    """``f`` of ``f`` and of ``x.f``; None of anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def reads(definition: Definition, name: str) -> bool:
    """Whether the body reads a field named ``name`` of something."""
    nodes = (node for node in ast.walk(definition) if isinstance(node, ast.Attribute) and node.attr == name)
    return any(isinstance(node.ctx, ast.Load) for node in nodes)


@cache
def body_hash(definition: Definition | Variable) -> str:
    """SHA-256 of the syntax tree without docstrings, comments and layout; the same under every Python version."""
    return hashlib.sha256(_dump(definition).encode()).hexdigest()


def _dump(node: object) -> str:
    if isinstance(node, ast.AST):
        # Fields that are empty are left out: newer Pythons add fields (type_params in 3.12) that old code leaves empty.
        parts = [
            f"{field}={_dump(value)}"
            for field, value in ast.iter_fields(node)
            if value not in (None, []) and field not in ("kind", "type_comment")
        ]
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return "[" + ",".join(_dump(item) for item in node if not _is_docstring(item)) + "]"
    return repr(node)


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
