"""The Triton compiler takes every kernel for the GPUs that we serve on, as it is launched: no GPU is needed for that.

What the interpreter runs, the compiler may refuse: types that change in a loop, shapes that do not fit. Run as a
script, outside the interpreter, this file compiles.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

HOPPER, BLACKWELL = (90, 100)
_types: set[tuple[str, ...]] = set()
"""Kernels, with the types of their arguments, that were compiled."""

WIDE = {"_split_kernel"}
"""Kernels that read whole vocabularies in each draft step; these are multiples of 16 here, as are addresses."""


@pytest.mark.timeout(450)  # 75 s of CPU from an empty cache; 300 s beside other work
def test_every_kernel_compiles() -> None:
    """In a process of its own: this one may run the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stderr
    kernels = {
        "_pool_kernel",
        "_top_kernel",
        "_split_kernel",
        "_finish_kernel",
        "_allocate_kernel",
        "_pack_kernel",
        "_scatter_kernel",
        "_observe_kernel",
        "_observe_tree_kernel",
        "_tree_kernel",
        "_chunks_kernel",
        "_accept_kernel",
        "_candidates_kernel",
        "_cutoffs_kernel",
        "_sums_kernel",
        "_propose_kernel",
        "_stash_kernel",
        "_extend_kernel",
        "_verify_kernel",
        "_rows_kernel",
    }
    assert set(run.stdout.split()) == kernels


def compile_instead_of_running(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """In the place of a launch: compile for what would have been launched."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_source

    values = inspect.signature(kernel.fn).bind(*args, **{n: v for n, v in kwargs.items() if n in kernel.arg_names})
    options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
    constants = {p.name for p in kernel.params if p.is_constexpr}
    signature = {n: "constexpr" if n in constants else type_name(v) for n, v in values.arguments.items()}
    fixed = {(i,): values.arguments[n] for i, n in enumerate(kernel.arg_names) if n in constants}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(kernel.arg_names) if signature[n].startswith("*")}
    # Sizes are a matter of the compiler's front end, which both have: for the second one, what differs in types alone.
    types = (kernel.fn.__name__, *signature.values())
    targets = (HOPPER,) if types in _types else (HOPPER, BLACKWELL)
    _types.add(types)
    for capability in targets:
        target = GPUTarget("cuda", capability, 32)
        compiled = compile_source(ASTSource(kernel, signature, fixed, aligned), target=target, options=options)
        if kernel.fn.__name__ in WIDE and ".v4." not in compiled.asm["ptx"]:
            raise RuntimeError(f"{kernel.fn.__name__} reads element by element")
    sys.stdout.write(f"{kernel.fn.__name__}\n")


def type_name(value: Any) -> str:
    """What the compiler calls the type of an argument."""
    if isinstance(value, torch.Tensor):
        names = {torch.bool: "i1", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
        return "*" + names.get(value.dtype, f"i{value.itemsize * 8}")
    return "fp32" if isinstance(value, float) else "i32"


def launch_everything() -> None:
    """Each launcher with the dtypes, and the extreme sizes, that it will meet."""
    from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
    from tessera_kernels.ops.rows.pool_rows import Reduce, Span
    from tessera_kernels.ops.rows.top_rows import Chunk
    from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
    from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows
    from tessera_kernels.ops.verify.verify_offsets import VerifyOffsets
    from tessera_kernels.triton.draft.chain_rows import chain_rows_triton
    from tessera_kernels.triton.draft.draft_confidence import draft_confidence_triton
    from tessera_kernels.triton.draft.draft_proposal import draft_proposal_triton
    from tessera_kernels.triton.learning.observe_acceptance import observe_acceptance_triton
    from tessera_kernels.triton.learning.observe_tree import observe_tree_triton
    from tessera_kernels.triton.rows.pool_rows import pool_rows_triton
    from tessera_kernels.triton.rows.top_rows import top_rows_triton
    from tessera_kernels.triton.verify.allocate_verify import allocate_verify_triton
    from tessera_kernels.triton.verify.pack_verify import pack_verify_triton
    from tessera_kernels.triton.verify.scatter_verify import scatter_verify_triton
    from tessera_kernels.triton.verify.verify_offsets import verify_offsets_triton

    ints, longs = torch.empty(600, dtype=torch.int32), torch.empty((2, 64), dtype=torch.int64)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        pool_rows_triton(torch.empty((4, 64), dtype=dtype), ints[None], [Span(0, 0, 4, Reduce.MEAN)])
        # It takes the compiler longest: by size for one type, by type for one size.
        for hidden_size, topk in ((64, 64), (4096, 128), (16384, 128)) if dtype == torch.bfloat16 else ((64, 64),):
            top_rows_triton(torch.empty((4, hidden_size), dtype=dtype), ints[None], [Chunk(0, 0, 4, -1, topk)], topk)
        for known in (32_000, 128_256):
            logits, warm = torch.empty((2, known), dtype=dtype), torch.empty((2, 1))
            draft_confidence_triton(logits, warm[:, 0], longs[:, 0])
            draft_confidence_triton(logits, warm[:, 0], longs[:, 0], longs[0, :2], longs[:, 1])
            draft_confidence_triton(logits, warm[:, 0], longs[:, 0], longs[0, :2])
            draft_confidence_triton(logits, warm[:, 0], longs[:, 0], longs[0, :2], longs[:, 1], longs[0])
            draft_proposal_triton(logits, warm, warm[:, 0], torch.empty((2, known)), longs[0, :2], warm[:, 0])
        scatter_verify_triton(torch.empty((4, 4096), dtype=dtype), ints, 2, torch.empty((16, 4096), dtype=dtype), 0)
    for dtype in (torch.int32, torch.int64):
        scatter_verify_triton(torch.empty(4, dtype=dtype), ints, 2, torch.empty(16, dtype=dtype), -1)
    for bs, depths in ((1, 1), (64, 7), (512, 16)):
        model = AcceptanceModel.create(torch.empty(31), torch.empty((depths, 32)), 600, "cpu")
        confidence, requests = torch.empty((bs, depths)), torch.empty(bs, dtype=torch.int64)
        allocate_verify_triton(confidence, requests, model, 2 * bs, VerifyPlan.create(bs, depths, depths, "cpu"))
        observe_acceptance_triton(confidence, requests, ints, ints, model)
        verify_offsets_triton(requests, ints[:bs], 8, VerifyOffsets(ints[:bs], ints[: bs + 1], ints[: bs + 1]))
        verify_offsets_triton(requests, None, 8, VerifyOffsets(ints[:bs], ints[: bs + 1], ints[: bs + 1]))
        rows = VerifyRows(*torch.empty((3, bs * (depths + 1)), dtype=torch.int64).unbind())
        chain_rows_triton(requests, rows.tokens.view(bs, -1)[:, 1:], requests, rows.tokens, rows.positions)
        slots = KVSlots(torch.empty((600, 4100), dtype=torch.int32), requests, requests)
        pack_verify_triton(rows, slots, ints, rows)
    for bs, nodes in ((1, 2), (64, 8), (512, 32)):
        model = AcceptanceModel.create(torch.empty(31), torch.empty((1, 32)), 600, "cpu")
        scores, requests = torch.empty((bs, nodes - 1)), torch.empty(bs, dtype=torch.int64)
        plan = VerifyPlan.create(bs, nodes - 1, nodes - 1, "cpu")
        allocate_verify_triton(scores, requests, model, 2 * bs, plan, paths=True)
        observe_tree_triton(scores, requests, ints, torch.empty((bs, 6), dtype=torch.int32), model)
    launch_trees(ints, longs)
    launch_acceptance(ints)
    launch_between_graphs(ints, longs)


def launch_trees(ints: torch.Tensor, longs: torch.Tensor) -> None:
    """Links of trees: few nodes and many."""
    from tessera_kernels.ops.draft.ragged_tree import RaggedTree
    from tessera_kernels.triton.draft.ragged_tree import ragged_tree_triton

    for nodes in (2, 8, 64):
        index = torch.empty((3, 2, nodes), dtype=torch.int64)
        tree = RaggedTree._make([*index.unbind(), longs.flatten(), torch.empty(9, dtype=torch.bool)])
        for prefix in (True, False):
            ragged_tree_triton(longs, longs, longs[0], ints, longs[0], 4, 5, prefix, tree)


def launch_between_graphs(ints: torch.Tensor, longs: torch.Tensor) -> None:
    """Drafts with states and without, tokens of prefills and of verifications; batches of one and of many."""
    from tessera_kernels.ops.draft.extend_offsets import ExtendOffsets
    from tessera_kernels.ops.draft.stash_drafts import DraftRows
    from tessera_kernels.triton.draft.extend_offsets import extend_offsets_triton
    from tessera_kernels.triton.draft.stash_drafts import stash_drafts_triton

    for dtype, hidden_size in ((torch.bfloat16, 4096), (torch.float16, 7168), (torch.float32, 64), (None, 0)):
        states = None if dtype is None else torch.empty((64, hidden_size), dtype=dtype)
        for topk in (1, 4, 10):
            drafts = DraftRows(longs[0], torch.empty((64, topk)), torch.empty((64, topk), dtype=torch.int64), states)
            for tokens in (longs[0], ints[:64]):
                stash_drafts_triton(drafts._replace(tokens=tokens), longs[1], drafts)
    table = torch.empty((600, 4100), dtype=torch.int32)
    for bs in (1, 64):
        offsets = ExtendOffsets(longs[0], ints, longs[1])
        for accepted in (None, ints[:bs]):
            extend_offsets_triton(longs[0, :bs], ints[:bs], accepted, longs[1, :bs], table, 8, offsets)


def launch_acceptance(ints: torch.Tensor) -> None:
    """Chains: one token and many, greedy and sampled."""
    from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, Observation
    from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits
    from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
    from tessera_kernels.triton.accept.accept_chains import accept_chains_triton
    from tessera_kernels.triton.accept.sampling_cutoffs import sampling_cutoffs_triton

    for dtype, width in ((torch.float32, 1), (torch.float32, 8), (torch.bfloat16, 16)):
        logits, chains = torch.empty((64, 128_256), dtype=dtype), torch.empty((4, width), dtype=torch.int64)
        accepted = AcceptedChains.create(4, width, chains.device)
        model = AcceptanceModel.create(torch.empty(31), torch.empty((max(width - 1, 1), 32)), 600, "cpu")
        observation = Observation(torch.empty((4, width)), torch.empty(4, dtype=torch.int64), model)
        warm = ChainSampling(torch.empty((4, 1)), torch.empty((4, width)), torch.empty(4))
        cutoffs = torch.empty(64)
        limits = SamplingLimits(warm.temperatures, ints[:4], warm.last_coins, warm.last_coins)
        sampling_cutoffs_triton(logits, ints, limits, width, cutoffs)
        proposed = warm._replace(cutoffs=cutoffs, proposals=torch.empty((4, width - 1, logits.shape[1])))
        of_few = proposed._replace(
            proposals=torch.empty((4, width - 1, 32_000)),
            draft_places=torch.empty(logits.shape[1], dtype=torch.int32),
        )
        for sampling in (None, warm, warm._replace(cutoffs=cutoffs), proposed, of_few):
            accept_chains_triton(logits, ints, chains, sampling, accepted, None if width == 1 else observation)


if __name__ == "__main__":
    from triton.runtime.jit import JITFunction

    JITFunction.run = compile_instead_of_running
    launch_everything()
