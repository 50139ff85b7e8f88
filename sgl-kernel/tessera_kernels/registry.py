"""The list of ops: for each its definition and its Triton kernel.

An op is a function on tensors with a Triton kernel and a reference in torch. The reference is the op's definition, and
the decorator `op` dispatches to the kernel, whose module it imports at the first launch. So kernels import definitions
and never the reverse, and a machine without a GPU never imports Triton. `tests/unit/test_kernel_registry.py` derives
from this list that every op is complete.
"""

from collections.abc import Callable
from functools import cached_property, update_wrapper
from importlib import import_module
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Op(NamedTuple):
    """An op, and where its parts are.

    Attributes:
        family: the folder of its modules.
        name: of its modules and of the op itself; the launch of its kernel is ``<name>_triton``.
    """

    family: str
    name: str

    @property
    def definition(self) -> str:
        """The module with the op's types and its reference."""
        return f"tessera_kernels.ops.{self.family}.{self.name}"

    @property
    def kernel(self) -> str:
        """The module with the Triton kernel and its launch."""
        return f"tessera_kernels.triton.{self.family}.{self.name}"


OPS = (
    Op("rows", "pool_rows"),
    Op("rows", "copy_rows"),
    Op("rows", "top_rows"),
    Op("draft", "draft_confidence"),
    Op("draft", "draft_proposal"),
    Op("draft", "ragged_tree"),
    Op("draft", "extend_offsets"),
    Op("verify", "allocate_verify"),
    Op("verify", "pack_verify"),
    Op("verify", "scatter_verify"),
    Op("accept", "accept_chains"),
    Op("accept", "sampling_cutoffs"),
    Op("learning", "observe_acceptance"),
    Op("learning", "observe_tree"),
)
_BY_NAME = {op.name: op for op in OPS}


class TensorOp(Generic[P, R]):
    """An op, as it is called: the Triton kernel where its first argument is on a GPU, else the reference.

    Args:
        reference: the op in torch; its name is in `OPS`.

    Raises:
        KeyError: it is not.
    """

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        self._op = _BY_NAME[reference.__name__]
        update_wrapper(self, reference)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the op on the device of its first argument."""
        first: Any = args[0]
        tensor = first[0] if isinstance(first, tuple) else first
        return self.kernel(*args, **kwargs) if tensor.is_cuda else self.reference(*args, **kwargs)

    @cached_property
    def kernel(self) -> Callable[P, R]:
        """The function ``<name>_triton``. Its module is imported when this is first looked up."""
        launch: Callable[P, R] = getattr(import_module(self._op.kernel), f"{self._op.name}_triton")
        return launch


def op(reference: Callable[P, R]) -> TensorOp[P, R]:
    """Make an op of its reference (decorator). Its first parameter is a tensor, or a tuple that begins with one."""
    return TensorOp(reference)
