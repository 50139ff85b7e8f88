"""Every kernel of the registry compiles, as it is launched, for the GPUs that we serve on. No GPU is needed.

The compiler rejects kernels that the interpreter runs: types that change in a loop, shapes that do not fit. Run as a
script, outside of the interpreter, this file compiles; it prints the kernels that each op launched.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from tessera_kernels import triton as triton_kernels
from tessera_kernels.registry import OPS

HOPPER, BLACKWELL = (90, 100)
_types: set[tuple[str, ...]] = set()
"""Kernels, with the types of their arguments, that were compiled."""

VECTORIZED = {"_split_kernel"}
"""Kernels that read whole vocabularies in each draft step. Here sizes are multiples of 16 and addresses aligned."""


@pytest.mark.timeout(450)  # 75 s of CPU from an empty cache; 300 s beside other work
def test_every_kernel_compiles() -> None:
    """In a process of its own: this one may run the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stderr
    compiled: dict[str, set[str]] = {}
    for line in run.stdout.splitlines():
        name, kernel = line.split()
        compiled.setdefault(name, set()).add(kernel)
    for op in OPS:
        assert launchers(op.kernel) <= compiled[op.name], op.name
    modules = [module.name for module in pkgutil.walk_packages(triton_kernels.__path__, f"{triton_kernels.__name__}.")]
    assert set.union(*map(launchers, modules)) == set.union(*compiled.values())


def launchers(module: str) -> set[str]:
    """The names of the kernels that a module defines."""
    from tessera_kernels.triton.device.launcher import Launcher

    return {name for name, value in vars(import_module(module)).items() if isinstance(value, Launcher)}


def compile_instead_of_running(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Replaces ``JITFunction.run``: compiles for the arguments of the launch."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_source

    values = inspect.signature(kernel.fn).bind(*args, **{n: v for n, v in kwargs.items() if n in kernel.arg_names})
    options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
    constants = {p.name for p in kernel.params if p.is_constexpr}
    signature = {n: "constexpr" if n in constants else type_name(v) for n, v in values.arguments.items()}
    fixed = {(i,): values.arguments[n] for i, n in enumerate(kernel.arg_names) if n in constants}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(kernel.arg_names) if signature[n].startswith("*")}
    # Constants concern the compiler's front end, which both targets share: the second one only compiles new types.
    types = (kernel.fn.__name__, *signature.values())
    targets = (HOPPER,) if types in _types else (HOPPER, BLACKWELL)
    _types.add(types)
    for capability in targets:
        target = GPUTarget("cuda", capability, 32)
        compiled = compile_source(ASTSource(kernel, signature, fixed, aligned), target=target, options=options)
        if kernel.fn.__name__ in VECTORIZED and ".v4." not in compiled.asm["ptx"]:
            raise RuntimeError(f"{kernel.fn.__name__} reads element by element")
    launched.add(kernel.fn.__name__)


launched: set[str] = set()
"""Kernels that the current compile case launched."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CHAIN_SIZES = ((1, 1), (64, 7), (512, 16))
"""Requests and depths of batches of chains."""
TREE_SIZES = ((1, 2), (64, 8), (512, 32))
"""Requests and nodes of batches of trees."""


def type_name(value: Any) -> str:
    """The compiler's name of an argument's type."""
    if isinstance(value, torch.Tensor):
        names = {torch.bool: "i1", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
        return "*" + names.get(value.dtype, f"i{value.itemsize * 8}")
    return "fp32" if isinstance(value, float) else "i32"


def ints(*shape: int) -> torch.Tensor:
    """An int32 tensor."""
    return torch.empty(shape, dtype=torch.int32)


def longs(*shape: int) -> torch.Tensor:
    """An int64 tensor."""
    return torch.empty(shape, dtype=torch.int64)


def model_of(depths: int) -> Any:
    """An acceptance model of 32 bins for 600 requests."""
    from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel

    return AcceptanceModel.create(torch.empty(31), torch.empty((depths, 32)), 600, "cpu")


def compile_pool_rows(launch: Callable[..., Any]) -> None:
    """Each dtype of the row store."""
    from tessera_kernels.ops.rows.pool_rows import Reduce, Span

    for dtype in DTYPES:
        launch(torch.empty((4, 64), dtype=dtype), ints(1, 600), [Span(0, 0, 4, Reduce.MEAN)])


def compile_copy_rows(launch: Callable[..., Any]) -> None:
    """Each dtype of the row store."""
    for dtype in DTYPES:
        launch((longs(8), longs(8)), torch.empty((64, 4096), dtype=dtype), torch.empty((64, 4096), dtype=dtype))


def compile_top_rows(launch: Callable[..., Any]) -> None:
    """By size for one dtype, by dtype for one size: it takes the compiler longest."""
    from tessera_kernels.ops.rows.top_rows import Chunk

    for dtype in DTYPES:
        for hidden_size, topk in ((64, 64), (4096, 128), (16384, 128)) if dtype == torch.bfloat16 else ((64, 64),):
            launch(torch.empty((4, hidden_size), dtype=dtype), ints(1, 600), [Chunk(0, 0, 4, -1, topk)], topk)


def compile_draft_confidence(launch: Callable[..., Any]) -> None:
    """With and without each optional tensor."""
    probability, index, chain, positions = torch.empty(2), longs(2, 64)[:, 0], longs(2, 64)[:, 1], longs(2)
    for dtype in DTYPES:
        for vocabulary in (32_000, 128_256):
            logits = torch.empty((2, vocabulary), dtype=dtype)
            launch(logits, probability, index)
            launch(logits, probability, index, positions, chain)
            launch(logits, probability, index, positions)


def compile_draft_proposal(launch: Callable[..., Any]) -> None:
    """Each dtype of the draft's logits."""
    temperatures, column = torch.empty((2, 1)), torch.empty(2)
    for dtype in DTYPES:
        for vocabulary in (32_000, 128_256):
            q = torch.empty((2, vocabulary))
            launch(torch.empty((2, vocabulary), dtype=dtype), temperatures, column, q, longs(2), column)


def compile_ragged_tree(launch: Callable[..., Any]) -> None:
    """Few nodes and many, with the prefix in the mask and without."""
    from tessera_kernels.ops.draft.ragged_tree import RaggedTree

    for nodes in (2, 8, 64):
        tree = RaggedTree._make([*longs(3, 2, nodes).unbind(), longs(128), torch.empty(9, dtype=torch.bool)])
        for prefix in (True, False):
            launch(longs(2, 64), longs(2, 64), longs(64), ints(600), longs(64), 4, 5, prefix, tree)


def compile_extend_offsets(launch: Callable[..., Any]) -> None:
    """One request and many, with accepted tokens and without."""
    from tessera_kernels.ops.draft.extend_offsets import ExtendOffsets

    for bs in (1, 64):
        offsets = ExtendOffsets(longs(64), ints(600), longs(64))
        for accepted in (None, ints(bs)):
            launch(longs(bs), ints(bs), accepted, longs(bs), ints(600, 4100), 8, offsets)


def compile_allocate_verify(launch: Callable[..., Any]) -> None:
    """Chains, then trees."""
    from tessera_kernels.ops.verify.allocate_verify import VerifyPlan

    for bs, depths in CHAIN_SIZES:
        plan = VerifyPlan.create(bs, depths, depths, "cpu")
        launch(torch.empty((bs, depths)), longs(bs), model_of(depths), 2 * bs, plan)
    for bs, nodes in TREE_SIZES:
        plan = VerifyPlan.create(bs, nodes - 1, nodes - 1, "cpu")
        launch(torch.empty((bs, nodes - 1)), longs(bs), model_of(1), 2 * bs, plan, paths=True)


def compile_pack_verify(launch: Callable[..., Any]) -> None:
    """Small batches and large ones."""
    from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows

    for bs, depths in CHAIN_SIZES:
        rows = VerifyRows(*longs(3, bs * (depths + 1)).unbind())
        launch(rows, KVSlots(ints(600, 4100), longs(bs), longs(bs)), ints(600), rows)


def compile_scatter_verify(launch: Callable[..., Any]) -> None:
    """Hidden states, then token ids."""
    for dtype in DTYPES:
        launch(torch.empty((4, 4096), dtype=dtype), ints(600), 2, torch.empty((16, 4096), dtype=dtype), 0)
    for dtype in (torch.int32, torch.int64):
        launch(torch.empty(4, dtype=dtype), ints(600), 2, torch.empty(16, dtype=dtype), -1)


def compile_accept_chains(launch: Callable[..., Any]) -> None:
    """One token and many; greedy, sampled, with cutoffs, and with proposals of the whole vocabulary and of a part."""
    from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, Observation

    for dtype, width in ((torch.float32, 1), (torch.float32, 8), (torch.bfloat16, 16)):
        logits = torch.empty((64, 128_256), dtype=dtype)
        accepted = AcceptedChains.create(4, width, logits.device)
        observation = Observation(torch.empty((4, width)), longs(4), model_of(max(width - 1, 1)))
        sampled = ChainSampling(torch.empty((4, 1)), torch.empty((4, width)), torch.empty(4))
        with_cutoffs = sampled._replace(cutoffs=torch.empty(64))
        proposed = with_cutoffs._replace(proposals=torch.empty((4, width - 1, logits.shape[1])))
        mapped = with_cutoffs._replace(proposals=torch.empty((4, width - 1, 32_000)), draft_ids=ints(logits.shape[1]))
        for sampling in (None, sampled, with_cutoffs, proposed, mapped):
            launch(logits, ints(600), longs(4, width), sampling, accepted, None if width == 1 else observation)


def compile_sampling_cutoffs(launch: Callable[..., Any]) -> None:
    """Each dtype of the target's logits."""
    from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits

    limits = SamplingLimits(torch.empty((4, 1)), ints(4), torch.empty(4), torch.empty(4))
    for dtype, width in ((torch.float32, 1), (torch.float32, 8), (torch.bfloat16, 16)):
        launch(torch.empty((64, 128_256), dtype=dtype), ints(600), limits, width, torch.empty(64))


def compile_observe_acceptance(launch: Callable[..., Any]) -> None:
    """Short chains and long ones."""
    for bs, depths in CHAIN_SIZES:
        launch(torch.empty((bs, depths)), longs(bs), ints(600), ints(600), model_of(depths))


def compile_observe_tree(launch: Callable[..., Any]) -> None:
    """Few nodes and many."""
    for bs, nodes in TREE_SIZES:
        launch(torch.empty((bs, nodes - 1)), longs(bs), ints(600), ints(bs, 6), model_of(1))


if __name__ == "__main__":
    from triton.runtime.jit import JITFunction

    JITFunction.run = compile_instead_of_running
    for op in OPS:
        launched.clear()
        globals()[f"compile_{op.name}"](getattr(import_module(op.definition), op.name).kernel)
        for name in sorted(launched):
            sys.stdout.write(f"{op.name} {name}\n")
