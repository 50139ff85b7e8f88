"""Imports point one way: no circles among our modules, and kernels import definitions, never the reverse."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest

from tessera_testing.imports import PACKAGES, imports

GRAPH = imports()
KERNELS = "tessera_kernels"
SHARED = f"{KERNELS}.private_cache", f"{KERNELS}.tree_links", f"{KERNELS}.driver"
ALLOWED = {
    f"{KERNELS}.registry": (),
    f"{KERNELS}.cpu": (f"{KERNELS}.cpu", *SHARED),
    f"{KERNELS}.ops": (f"{KERNELS}.ops", f"{KERNELS}.registry", *SHARED),
    f"{KERNELS}.triton": (f"{KERNELS}.ops", f"{KERNELS}.triton.device"),
}
"""What each part of the package may import of ours."""


def inside(module: str, package: str) -> bool:
    """Whether a module is a package or in it."""
    return module == package or module.startswith(f"{package}.")


def test_there_are_no_circles() -> None:
    """Among all modules, with imports inside functions and for types; the error names the modules of a circle."""
    try:
        order = list(TopologicalSorter(GRAPH).static_order())
    except CycleError as error:
        pytest.fail(f"import circle: {' -> '.join(error.args[1])}")
    assert len(order) == len(GRAPH)
    assert {name.split(".")[0] for name in order} == set(PACKAGES)


def test_a_circle_would_be_found() -> None:
    """The graph has edges of all kinds: at the top, in functions, for types, relative ones."""
    assert f"{KERNELS}.registry" in GRAPH[f"{KERNELS}.ops.rows.pool_rows"]
    assert f"{KERNELS}.cpu" in GRAPH["tessera.cpu"]
    assert "tessera.metrics" in GRAPH["tessera.config"]
    assert f"{KERNELS}.cpu.driver" in GRAPH[f"{KERNELS}.cpu"]
    assert f"{KERNELS}.cpu.kv_cache" in GRAPH[f"{KERNELS}.cpu.ops"]


@pytest.mark.parametrize("part", ALLOWED)
def test_kernels_import_definitions(part: str) -> None:
    """A kernel imports definitions and what kernels share; a definition imports no kernel."""
    members = [module for module in GRAPH if inside(module, part)]
    assert members
    for module in members:
        wrong = {one for one in GRAPH[module] if not any(inside(one, allowed) for allowed in ALLOWED[part])}
        assert not wrong, module
