"""Every op of the registry has a definition, a reference, a kernel, a compile case and a test; and no op is missing."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tessera_kernels import registry
from tessera_kernels.registry import OPS, Op, TensorOp, op
from tessera_testing.imports import ROOT, modules

KERNELS = "tessera_kernels.triton"
SHARED = f"{KERNELS}.device"
EACH = pytest.mark.parametrize("own", OPS, ids=lambda own: own.name)


def functions(path: Path) -> set[str]:
    """The names of a module's functions."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def leaves(package: str) -> dict[str, Path]:
    """The modules in the families of a package."""
    return {name: path for name, path in modules().items() if name.startswith(package) and path.stem != "__init__"}


def test_every_kernel_is_listed() -> None:
    """Once, under its own name."""
    kernels = [name for name in leaves(f"{KERNELS}.") if not name.startswith(f"{SHARED}.")]
    assert sorted(own.kernel for own in OPS) == sorted(kernels)
    assert len({own.name for own in OPS}) == len(OPS)


def test_every_definition_is_listed() -> None:
    """A module of `tessera_kernels.ops` that defines a function of its own name is an op."""
    defined = {name for name, path in leaves("tessera_kernels.ops.").items() if path.stem in functions(path)}
    assert {own.definition for own in OPS} == defined


@EACH
def test_reference_and_kernel_agree(own: Op) -> None:
    """They have the same parameters; the kernel may have more, optional."""
    definition: TensorOp[..., object] = getattr(import_module(own.definition), own.name)
    kernel = import_module(own.kernel)
    parameters = list(inspect.signature(definition.reference).parameters)
    launched = list(inspect.signature(getattr(kernel, f"{own.name}_triton")).parameters.values())
    assert [one.name for one in launched[: len(parameters)]] == parameters
    assert all(one.default is not inspect.Parameter.empty for one in launched[len(parameters) :])
    assert definition.kernel is getattr(kernel, f"{own.name}_triton")


@EACH
def test_each_has_a_compile_case(own: Op) -> None:
    """`tests/kernels/test_compiles.py` runs it, and checks that it launches every kernel of the op's module."""
    assert f"compile_{own.name}" in functions(ROOT / "tests/kernels/test_compiles.py")


@EACH
def test_each_has_a_test(own: Op) -> None:
    """A file of its own, which runs both kernel and reference."""
    text = (ROOT / f"tests/kernels/test_{own.name}.py").read_text(encoding="utf-8")
    assert f"{own.name}_triton" in text
    assert f"{own.name}.reference" in text


def test_no_case_is_left_over() -> None:
    """Of an op that is gone."""
    cases = {name for name in functions(ROOT / "tests/kernels/test_compiles.py") if name.startswith("compile_")}
    assert cases - {"compile_instead_of_running"} == {f"compile_{own.name}" for own in OPS}


def test_a_kernel_is_imported_at_its_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and not when its definition is imported."""
    imported: list[str] = []

    def note(name: str) -> ModuleType:
        imported.append(name)
        return import_module(name)

    monkeypatch.setattr(registry, "import_module", note)

    def pool_rows() -> None:
        """A definition of the first op."""

    definition = op(pool_rows)
    assert imported == []
    assert definition.kernel is definition.kernel
    assert imported == [OPS[0].kernel]


def test_an_unknown_op_is_refused() -> None:
    """At its definition."""

    def sort_rows() -> None:
        """Of no op in the list."""

    with pytest.raises(KeyError, match="sort_rows"):
        op(sort_rows)
