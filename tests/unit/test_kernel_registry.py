"""Every op of the registry has a definition, a reference, a kernel, a compile case and a test; and no op is missing."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tessera_kernels import registry
from tessera_kernels.registry import OPS, Kernel, Op, kernel_of
from tessera_testing.imports import ROOT, modules

KERNELS = "tessera_kernels.triton"
SHARED = f"{KERNELS}.device"
OP = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def functions(path: Path) -> set[str]:
    """The names of a module's functions."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def leaves(package: str) -> dict[str, Path]:
    """The modules in the families of a package."""
    return {name: path for name, path in modules().items() if name.startswith(package) and path.stem != "__init__"}


def test_every_kernel_is_listed() -> None:
    """Once, under its own name."""
    kernels = [name for name in leaves(f"{KERNELS}.") if not name.startswith(f"{SHARED}.")]
    assert sorted(op.kernel for op in OPS) == sorted(kernels)
    assert len({op.name for op in OPS}) == len(OPS)


def test_every_definition_is_listed() -> None:
    """A module of `tessera_kernels.ops` that defines a function and its reference is an op."""
    defined = {
        name
        for name, path in leaves("tessera_kernels.ops.").items()
        if {path.stem, f"{path.stem}_torch"} <= functions(path)
    }
    assert {op.definition for op in OPS} == defined


@OP
def test_definition_reference_and_kernel_agree(op: Op) -> None:
    """They have the same parameters; the reference may lack those of the launch, the kernel may have more, optional."""
    definition, kernel = import_module(op.definition), import_module(op.kernel)
    parameters = list(inspect.signature(getattr(definition, op.name)).parameters)
    reference = list(inspect.signature(getattr(definition, f"{op.name}_torch")).parameters)
    launched = list(inspect.signature(getattr(kernel, f"{op.name}_triton")).parameters.values())
    assert [one for one in parameters if one not in {"stream", "workspace"}] == reference
    assert [one.name for one in launched[: len(parameters)]] == parameters
    assert all(one.default is not inspect.Parameter.empty for one in launched[len(parameters) :])
    assert definition._KERNEL.launch is getattr(kernel, f"{op.name}_triton")


@OP
def test_each_has_a_compile_case(op: Op) -> None:
    """`tests/kernels/test_compiles.py` runs it, and checks that it launches every kernel of the op's module."""
    assert op.compile_case in functions(ROOT / "tests/kernels/test_compiles.py")


@OP
def test_each_has_a_test(op: Op) -> None:
    """A file of its own, which runs both kernel and reference."""
    text = (ROOT / op.test).read_text(encoding="utf-8")
    assert f"{op.name}_triton" in text
    assert f"{op.name}_torch" in text


def test_no_case_is_left_over() -> None:
    """Of an op that is gone."""
    cases = {name for name in functions(ROOT / "tests/kernels/test_compiles.py") if name.startswith("compile_")}
    assert cases - {"compile_instead_of_running"} == {op.compile_case for op in OPS}


def test_a_kernel_is_imported_at_its_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and not when its definition is imported."""
    imported: list[str] = []

    def note(name: str) -> ModuleType:
        imported.append(name)
        return import_module(name)

    monkeypatch.setattr(registry, "import_module", note)
    kernel = Kernel(OPS[0])
    assert imported == []
    assert kernel.launch is kernel.launch
    assert imported == [OPS[0].kernel]


def test_an_unknown_op_is_refused() -> None:
    """At import of its definition."""
    with pytest.raises(KeyError, match="sort_rows"):
        kernel_of("sort_rows")
