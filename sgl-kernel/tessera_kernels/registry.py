"""The list of ops: for each its definition, its Triton kernel, its compile case and its tests.

An op is a function on tensors with a Triton kernel and a reference in torch. Its definition imports no kernel; it asks
`kernel_of`, which imports the kernel's module at the first launch. So kernels import definitions and never the reverse,
and a machine without a GPU never imports Triton. `tests/unit/test_kernel_registry.py` derives from this
list that every op is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple


class Op(NamedTuple):
    """An op, and where its parts are.

    Attributes:
        family: the folder of its modules.
        name: of its modules and of the op itself; its reference is ``<name>_torch``, the launch of its kernel
            ``<name>_triton``.
    """

    family: str
    name: str

    @property
    def definition(self) -> str:
        """The module with the op's types, the op itself and its reference."""
        return f"tessera_kernels.ops.{self.family}.{self.name}"

    @property
    def kernel(self) -> str:
        """The module with the Triton kernel and its launch."""
        return f"tessera_kernels.triton.{self.family}.{self.name}"

    @property
    def compile_case(self) -> str:
        """The function in ``tests/kernels/test_compiles.py`` that launches the kernel with the dtypes it will meet."""
        return f"compile_{self.name}"

    @property
    def test(self) -> str:
        """The file that compares kernel and reference."""
        return f"tests/kernels/test_{self.name}.py"


OPS = (
    Op("rows", "pool_rows"),
    Op("rows", "top_rows"),
    Op("draft", "draft_confidence"),
    Op("draft", "draft_proposal"),
    Op("draft", "stash_drafts"),
    Op("draft", "chain_rows"),
    Op("draft", "ragged_tree"),
    Op("draft", "extend_offsets"),
    Op("verify", "allocate_verify"),
    Op("verify", "pack_verify"),
    Op("verify", "scatter_verify"),
    Op("verify", "verify_offsets"),
    Op("accept", "accept_chains"),
    Op("accept", "sampling_cutoffs"),
    Op("learning", "observe_acceptance"),
    Op("learning", "observe_tree"),
)
_BY_NAME = {op.name: op for op in OPS}


class Kernel:
    """The Triton kernel of an op; its module is imported when `launch` is first looked up, and only then.

    Args:
        op: the kernel's op.
    """

    def __init__(self, op: Op) -> None:
        self._op = op

    @cached_property
    def launch(self) -> Callable[..., Any]:
        """The function ``<name>_triton``: the op's parameters, on CUDA tensors."""
        function: Callable[..., Any] = getattr(import_module(self._op.kernel), f"{self._op.name}_triton")
        return function


def kernel_of(name: str) -> Kernel:
    """The kernel of an op, for its definition to launch.

    Raises:
        KeyError: no op of this name is in `OPS`.
    """
    return Kernel(_BY_NAME[name])
