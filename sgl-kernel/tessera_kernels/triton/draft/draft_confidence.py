"""The Triton kernels of `tessera_kernels.ops.draft.draft_confidence`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.triton.device.launcher import Launcher, power_of_2

COLUMNS_PER_SPLIT = 4096
"""32 programs for one row of 128k: enough to read a single row at a large part of the memory bandwidth."""
_ALIGNMENT = 16
"""Elements. Loads are vectorized where the compiler knows that row sizes and strides are multiples of it."""


@Launcher
@triton.jit(do_not_specialize=["columns", "row_stride"])  # type: ignore[untyped-decorator]
def _split_kernel(  # type: ignore[no-untyped-def]
    logits,
    maxima,
    sums,
    indices,
    columns,
    row_stride,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (row, split): the maximum, its lowest index, and sum(exp(x - maximum)) of one split of a row."""
    columns, row_stride = columns // ALIGNED * ALIGNED, row_stride // ALIGNED * ALIGNED  # unchanged
    row = tl.program_id(0).to(tl.int64)  # row * stride may exceed 2^31
    split = tl.program_id(1)
    column = split * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(logits + row * row_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("inf"))
    best = tl.max(value, 0)
    # A split with only minus infinity sums to 0, not to NaN.
    shift = tl.where(best == float("-inf"), 0.0, best)
    cell = row * tl.num_programs(1) + split
    tl.store(maxima + cell, best)
    tl.store(sums + cell, tl.sum(tl.exp(value - shift), 0))
    tl.store(indices + cell, split * BLOCK + tl.argmax(value, 0))


@Launcher
@triton.jit(do_not_specialize=["splits", "probability_stride", "index_stride", "chain_stride"])  # type: ignore[untyped-decorator]
def _finish_kernel(  # type: ignore[no-untyped-def]
    maxima,
    sums,
    indices,
    probability,
    index,
    positions,
    chain,
    splits,
    probability_stride,
    index_stride,
    chain_stride,
    HAS_POSITIONS: tl.constexpr,
    HAS_CHAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r combines the splits of row r."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, BLOCK)
    inside = split < splits
    best_of_split = tl.load(maxima + row * splits + split, mask=inside, other=float("-inf"))
    sum_of_split = tl.load(sums + row * splits + split, mask=inside, other=0.0)
    first = tl.argmax(best_of_split, 0)
    best = tl.max(best_of_split, 0)
    total = tl.sum(sum_of_split * tl.exp(best_of_split - best), 0)
    greatest = tl.where(total == total, 1.0 / total, 0.0)
    tl.store(probability + row * probability_stride, greatest)
    token = tl.load(indices + row * splits + first).to(tl.int64)
    tl.store(index + row * index_stride, token)
    if HAS_POSITIONS:
        tl.store(positions + row, tl.load(positions + row) + 1)
    if HAS_CHAIN:
        tl.store(chain + row * chain_stride, token)


def draft_confidence_triton(
    logits: torch.Tensor,
    probability: torch.Tensor,
    index: torch.Tensor,
    positions: torch.Tensor | None = None,
    chain: torch.Tensor | None = None,
) -> None:
    """See `tessera_kernels.ops.draft.draft_confidence`. Two launches."""
    rows, columns = logits.shape
    splits = -(-columns // COLUMNS_PER_SPLIT)
    maxima, sums = (torch.empty((rows, splits), dtype=torch.float32, device=logits.device) for _ in range(2))
    indices = torch.empty((rows, splits), dtype=torch.int32, device=logits.device)
    stride = logits.stride(0)
    aligned = 1 if columns % _ALIGNMENT or stride % _ALIGNMENT else _ALIGNMENT
    _split_kernel(
        (rows, splits, 1), (logits, maxima, sums, indices), (columns, stride), (aligned, COLUMNS_PER_SPLIT), num_warps=8
    )
    optional = [index if one is None else one for one in (positions, chain)]  # None is not accessed
    strides = probability.stride(0), index.stride(0), 0 if chain is None else chain.stride(0)
    present = positions is not None, chain is not None
    _finish_kernel(
        (rows, 1, 1),
        (maxima, sums, indices, probability, index, *optional),
        (splits, *strides),
        (*present, power_of_2(splits)),
        num_warps=1,
    )
