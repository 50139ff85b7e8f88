"""Every change of SGLang's objects that stands in our code is in the inventory, and nothing else is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from sglang.srt.managers import io_struct

from tessera.capabilities import registry
from tessera_kernels import cpu
from tessera_kernels.cpu import ops
from tessera_patches.core import changes as changes_module
from tessera_patches.core import source
from tessera_patches.core.places import REQUEST
from tessera_patches.core.seam import Hook, Seam
from tessera_patches.inventory import DECLARED, SEAMS
from tessera_testing.patch_source import (
    MARKS,
    Place,
    called,
    constant,
    definition,
    extends_sglang,
    imports,
    is_copy,
    is_mark,
    is_sglangs,
    modules,
    origins,
    places,
    rewritten,
    root,
)

ROOT = Path(__file__).parents[2]
CHANGES = {
    "replace_method": Hook.METHOD,
    "Tap": Hook.METHOD,
    "change_class": Hook.CLASS,
    "TemporaryFields": Hook.VALUE,
    "set_environment": Hook.VALUE,
    "override": Hook.VALUE,
    "filter_log": Hook.OBJECT,
    "truncate": Hook.OBJECT,
    "move_to_front": Hook.OBJECT,
    "before_signal": Hook.OBJECT,
    "with_alarm": Hook.OBJECT,
    "add_api_route": Hook.OBJECT,
    "add_exception_handler": Hook.OBJECT,
    "add_middleware": Hook.OBJECT,
}
"""What makes changes: functions of `tessera_patches.core.changes`, ``override`` of SGLang's options, and methods of its
application."""
BY_HAND = {
    *("setattr", "delattr", "__setattr__", "MethodType", "globals"),
    *("getsignal", "signal", "setitimer", "putenv", "patch", "addFilter", "addHandler", "setLevel"),
    *("mount", "include_router", "register_hook", "register_load_state_dict_post_hook"),
    *("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
}
"""What could make some as well, beside torch's hooks on all modules (``register_module…``)."""
NAMESPACES = ("os.environ", "sys.modules", "vars(")
ADAPTER = "tessera_patches.engine"
RESPONSES = {"body_iterator"}
"""Fields of what SGLang answers with that is Starlette's."""

Found = tuple[Place, Hook, str]


def folder(handler: str) -> str:
    """The package of a handler."""
    return handler.partition(":")[0].rpartition(".")[0]


def last(path: str) -> str:
    """The name at the end of a dotted path."""
    return path.partition("; ")[0].rpartition(".")[2]


def name_of(seam: Seam) -> str:
    """What a change says of its target: of a value its name."""
    return last(seam.target) if seam.hook is Hook.VALUE else ""


def changes() -> Iterator[Found]:
    """Each call that changes something, how, and of a value its name."""
    for place in places():
        node = place.node
        if not isinstance(node, ast.Call) or called(node) not in CHANGES:
            continue
        hook = CHANGES[called(node)]
        if called(node) == "set_environment":
            yield place, hook, constant(place.module, ast.unparse(node.args[1]))
        elif isinstance(node.func, ast.Attribute) and root(node.func) == "envs":
            yield place, hook, last(ast.unparse(node.func.value))
        elif hook is Hook.VALUE:
            yield from ((place, hook, keyword.arg) for keyword in node.keywords if keyword.arg is not None)
        else:
            yield place, hook, ""


def stores() -> Iterator[tuple[Place, ast.Attribute]]:
    """Each field of SGLang's that is set or deleted, or whose list, dict, array or tensor is rewritten in place."""
    for place in places():
        node = place.node
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and is_sglangs(place, node):
            yield place, node
        yield from ((place, field) for field in rewritten(place))


def test_every_change_is_listed() -> None:
    """With the function or class that makes it. What an object of our own class sets of itself for a block need not."""
    listed = {(seam.handler, seam.hook, name_of(seam)) for seam in DECLARED}
    written = {(folder(seam.handler), last(path)) for seam in DECLARED for path in seam.writes}
    unlisted = [
        str(place)
        for place, hook, name in changes()
        if (place.handler, hook, name) not in listed
        and (folder(place.handler), name) not in written
        and not re.match(r"TemporaryFields\([\w.]+, self,", ast.unparse(place.node))
    ]
    assert unlisted == []


def test_every_field_that_is_set_is_listed() -> None:
    """As one that a seam of the same folder sets, or of one above it; what the adapter sets, it sets for any seam."""
    written = {(folder(seam.handler), last(path)) for seam in DECLARED for path in seam.writes}
    unlisted = [
        str(place)
        for place, field in stores()
        if not field.attr.startswith(MARKS) and field.attr not in RESPONSES
        if not any(_may_serve(place, own) and name == field.attr for own, name in written)
    ]
    assert unlisted == []


def _may_serve(place: Place, seam_folder: str) -> bool:
    """Whether a seam of this folder may change SGLang's objects there."""
    return folder(place.handler).startswith((seam_folder, ADAPTER))


@pytest.mark.parametrize("seam", [seam for seam in DECLARED if seam.writes], ids=lambda seam: seam.target)
def test_every_field_that_is_listed_is_set(seam: Seam) -> None:
    """In the handler's folder, in one below it, or in the adapter."""
    found = [(place, field.attr) for place, field in stores()]
    found += [(place, name) for place, _, name in changes()]
    own = {name for place, name in found if _may_serve(place, folder(seam.handler))}
    logic = set_on_requests() if seam.target == REQUEST else set()
    assert {last(path) for path in seam.writes} <= own | logic


def test_nothing_is_changed_by_hand() -> None:
    """Outside of core: no object gets another class or method, and by their names only fields of ours are set."""
    assert [str(place) for place in places() if _by_hand(place) or _as_value(place)] == []


def _as_value(place: Place) -> bool:
    """Whether a function that could make a change is taken as a value; a module may have the same name."""
    node = place.node
    if not isinstance(node, ast.Name | ast.Attribute) or id(node) in _callees():
        return False
    name = node.attr if isinstance(node, ast.Attribute) else node.id
    is_module = isinstance(node, ast.Name) and name == origins(place.module).get(name)
    return (name in BY_HAND or name.startswith("register_module")) and not is_module


@cache
def _callees() -> set[int]:
    """What calls call: those are judged by their arguments."""
    return {id(place.node.func) for place in places() if isinstance(place.node, ast.Call)}


def _by_hand(place: Place) -> bool:
    node = place.node
    if isinstance(node, ast.Call) and (called(node) in BY_HAND or called(node).startswith("register_module")):
        on_itself = called(node) == "setattr" and ast.unparse(node.args[0]) == "self"
        return not (on_itself or (called(node) == "setattr" and is_mark(place, node.args[1])))
    if isinstance(node, ast.Attribute):
        return node.attr in {"__class__", "__dict__"} or (_is_set(node) and _is_of_others(place, node))
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return ast.unparse(node.value).startswith(NAMESPACES)
    if isinstance(node, ast.Call) and called(node) in {"update", "setdefault", "pop"}:
        owner = ast.unparse(node.func)
        copied = isinstance(node.func, ast.Attribute) and is_copy(place, owner.removeprefix("vars(").partition(")")[0])
        return owner.startswith(NAMESPACES) and not copied and not (node.args and is_mark(place, node.args[0]))
    return False


def _is_set(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_of_others(place: Place, field: ast.Attribute) -> bool:
    """Whether a field is of something that a package has which is neither ours nor SGLang's: torch, or Triton."""
    package = origins(place.module).get(root(field), "").partition(".")[0]
    return not package.startswith("tessera") and package not in {"", "sglang"}


def test_every_class_that_extends_one_of_sglangs_is_listed() -> None:
    """By itself, or it extends one that is, or objects become its own by a handler beside it."""
    listed = {seam.handler for seam in DECLARED}
    swapped = {
        (place.module, ast.unparse(name))
        for place in places()
        if called(place.node) == "change_class"
        for name in ast.walk(place.node)
        if isinstance(name, ast.Name)
    }
    unlisted = []
    for place in places():
        node = place.node
        if not isinstance(node, ast.ClassDef):
            continue
        stock = any(extends_sglang(place.module, base) or ast.unparse(base) == "torch.Tensor" for base in node.bases)
        above = {f"{origins(place.module).get(root(base))}:{ast.unparse(base)}" for base in node.bases}
        if stock and (place.module, node.name) not in swapped and not {f"{place.module}:{node.name}", *above} & listed:
            unlisted.append(str(place))
    assert unlisted == []


MADE = [seam for seam in DECLARED if not seam.registered and seam.handler.partition(":")[0] in modules()]


@pytest.mark.parametrize("seam", MADE, ids=lambda seam: f"{seam.hook}-{last(seam.target)}-{seam.handler}")
def test_every_listed_change_is_made(seam: Seam) -> None:
    """By its handler."""
    handler = definition(seam.handler)
    bases = handler.bases if isinstance(handler, ast.ClassDef) else []
    if seam.hook is Hook.TENSOR:
        assert [ast.unparse(base) for base in bases] == ["torch.Tensor"]
    elif seam.hook is Hook.SUBCLASS:
        assert any(extends_sglang(seam.handler.partition(":")[0], base) for base in bases)
    else:
        made = {(place.handler, hook, name) for place, hook, name in changes()}
        assert (seam.handler, seam.hook, name_of(seam)) in made


COUNTING = {"count", *(name for name in CHANGES if hasattr(changes_module, name))}


def counted() -> set[str]:
    """The handlers that something counts for: what is named first in a call that counts."""
    found = set()
    for place in places():
        node = place.node
        if not isinstance(node, ast.Call) or called(node) not in COUNTING or not node.args:
            continue
        name = ast.unparse(node.args[0]).partition(".")[0]
        own = name in {"type(self)", "cls", "by"}  # of a class whose subclasses have seams, or a name for its own
        origin = origins(place.module).get(name, "").removesuffix(f".{name}")
        found.add(place.handler if own else f"{origin or place.module}:{name}")
    return found


@pytest.mark.parametrize("seam", MADE, ids=lambda seam: f"{seam.hook}-{last(seam.target)}-{seam.handler}")
def test_every_listed_change_counts(seam: Seam) -> None:
    """By its handler's name, or by the class of an object."""
    module, name = seam.handler.split(":")
    handler = getattr(import_module(module), name)
    kinds = handler.__mro__ if isinstance(handler, type) else (handler,)
    assert {f"{kind.__module__}:{kind.__qualname__}" for kind in kinds} & counted()


@cache
def outside() -> dict[str, ast.Module]:
    """Every module of logic and kernels, by its dotted path."""
    return {
        ".".join(path.relative_to(base).with_suffix("").parts): ast.parse(path.read_text())
        for base in (ROOT / "python", ROOT / "sgl-kernel")
        for path in base.rglob("*.py")
    }


def set_fields(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each field that is set or deleted of something that has a name: that name, and the field's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield root(node), node.attr
        elif isinstance(node, ast.Call) and called(node) in {"setattr", "delattr", "__setattr__"}:
            owner, name = node.args[:2]
            yield root(owner), str(name.value) if isinstance(name, ast.Constant) else ast.unparse(name)


def set_on_requests() -> set[str]:
    """Fields of SGLang's request that logic sets. Those that only our subclass has are not among them."""
    ours = {name for name, _ in registry.declared_fields(openai=False)}
    ours -= set(io_struct.GenerateReqInput.__dataclass_fields__)
    return {name for tree in outside().values() for owner, name in set_fields(tree) if owner == "request"} - ours


def test_handlers_outside_of_the_patches() -> None:
    """Logic changes no object of SGLang's, but for requests and in the module that is listed; neither do kernels."""
    by_hand = {"delattr", "MethodType", "setitimer", "putenv", "addFilter", "setLevel"}
    hooks = {"register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"}
    found = {
        module
        for module, tree in outside().items()
        for node in ast.walk(tree)
        if called(node) in by_hand | hooks
        or called(node).startswith("register_module")
        or (isinstance(node, ast.Attribute) and node.attr == "__class__" and not isinstance(node.ctx, ast.Load))
    }
    listed = {seam.handler.partition(":")[0] for seam in DECLARED}
    assert found == {module for module in listed if module.startswith("tessera.")}


def test_fields_of_requests_that_logic_sets() -> None:
    """Capabilities prepare the request that the listed class hands to them."""
    (seam,) = [seam for seam in DECLARED if seam.target == REQUEST]
    assert set_on_requests() == {last(path) for path in seam.writes}


def test_what_the_cpu_engine_sets_is_listed() -> None:
    """SGLang's environment variables, and what logic or kernels set of a module that is not ours: nothing elsewhere."""
    found = {
        f"{owner}.{name}"
        for tree in outside().values()
        for owner, name in set_fields(tree)
        if (imported := imports(tree).get(owner, "")) and not imported.startswith("tessera")
    }
    listed = {seam.why.partition(": ")[0] for seam in DECLARED if seam.handler == "tessera_kernels.cpu:enable"}
    assert listed == found | {name for name in cpu._ENVIRONMENT if name.startswith("SGLANG_")}


def called_for(operator: str, module: Path) -> set[str]:
    """What an operator is called by in a module: its name, and others that SGLang gives it where it runs on a CPU."""
    names = {operator}
    chosen = [top for top in source._module(module).body if isinstance(top, ast.If)]
    for node in [node for top in chosen for node in ast.walk(top)]:
        if isinstance(node, ast.Assign) and names & mentioned(node.value):
            names |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.FunctionDef) and names & mentioned(node):
            names.add(node.name)
    return names


def mentioned(node: ast.AST) -> set[str]:
    """Names and attributes in it."""
    return {
        found.id if isinstance(found, ast.Name) else found.attr
        for found in ast.walk(node)
        if isinstance(found, ast.Name | ast.Attribute)
    }


def test_every_operator_is_listed() -> None:
    """Those for machines without a GPU, each with a function that calls it, perhaps by another name."""
    listed = {seam.why.split(" calls ")[1].split()[0]: seam.target for seam in SEAMS if seam.hook is Hook.OPERATOR}
    assert listed.keys() == {function.__name__ for function, _ in ops._OPERATORS}
    for operator, target in listed.items():
        module, _ = source._file(target, None)
        assert mentioned(source.find(target)) & called_for(operator, module), target
