"""The Triton kernel behind `tessera_kernels.ops.verify.allocate_verify.allocate_verify`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_kernels.triton.device.acceptance_model import acceptance, requests_of
from tessera_kernels.triton.device.launch import Launcher, power_of_2

# Float bits of survivals, which lie in 0 to 1, are below this; so many halvings find one of them.
_BEYOND_ONE = tl.constexpr(0x3F800001)
_HALVINGS = tl.constexpr(30)
_HISTOGRAM_SCALE = int(1 / HISTOGRAM_UNIT)
_NUMBERS = ["bs", "wanted", "slots", "confidence_stride", "survival_stride", "depths", "steps"]
_WARPS = ((1024, 4), (8192, 8))
"""Up to so many elements of the block, so many warps; 16 beyond."""


@triton.jit  # type: ignore[untyped-decorator]
def _count(  # type: ignore[no-untyped-def]
    bins, survival, counted, depths, H_BINS: tl.constexpr, H_SCALE: tl.constexpr
):
    """Add to the histogram; ``bins`` points to the first bin of each survival's column."""
    cell = bins + tl.minimum((survival * H_BINS).to(tl.int32), H_BINS - 1)
    tl.atomic_add(cell, 1, mask=counted, sem="relaxed")
    tl.atomic_add(cell + depths * H_BINS, (survival * H_SCALE + 0.5).to(tl.int32), mask=counted, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _survivals(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    edges,
    logits,
    offsets,
    survival_out,
    histogram,
    bs,
    confidence_stride,
    survival_stride,
    depths,
    steps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
    H_BINS: tl.constexpr,
    H_SCALE: tl.constexpr,
):
    """Survivals as one block ``[ROWS, COLUMNS]``, -1 where there is no draft token; stored and counted on the way."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = row < bs
    _request, offset, drafted = requests_of(confidence, requests, offsets, row, live, confidence_stride)
    running = tl.where(drafted, 1.0, 0.0)
    block = tl.full((ROWS, COLUMNS), -1.0, tl.float32)
    for depth in range(steps):
        sure = tl.load(confidence + row * confidence_stride + depth, mask=live, other=0.0)
        _, step = acceptance(sure, edges, logits + depth * BINS, offset, BINS, LEVELS)
        running *= step  # in order: an associative scan could round a deeper token above one before it
        tl.store(survival_out + row * survival_stride + depth, running, mask=live)
        here = (column == depth)[None, :] & live[:, None]
        block = tl.where(here, running[:, None], block)
        _count(histogram + depth * H_BINS, running, drafted, depths, H_BINS, H_SCALE)
    return block


@triton.jit
def _lesser(a, b):  # type: ignore[no-untyped-def]
    return tl.minimum(a, b)


@triton.jit  # type: ignore[untyped-decorator]
def _path_survivals(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    edges,
    logits,
    offsets,
    survival_out,
    histogram,
    bs,
    confidence_stride,
    survival_stride,
    depths,
    steps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
    H_BINS: tl.constexpr,
    H_SCALE: tl.constexpr,
):
    """The same for trees, all nodes at once: each has its own path score, and a minimum rounds nothing."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = row < bs
    node = live[:, None] & (column < steps)[None, :]
    _request, offset, drafted = requests_of(confidence, requests, offsets, row, live, confidence_stride)
    score = tl.load(confidence + row[:, None] * confidence_stride + column[None, :], mask=node, other=0.0)
    _, accepted = acceptance(score, edges, logits, offset[:, None], BINS, LEVELS)
    survival = tl.where(drafted[:, None], tl.associative_scan(accepted, 1, _lesser), 0.0)
    tl.store(survival_out + row[:, None] * survival_stride + column[None, :], survival, mask=node)
    _count(histogram + column[None, :] * H_BINS, survival, node & drafted[:, None], depths, H_BINS, H_SCALE)
    return tl.where(node, survival, -1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _top(block, wanted, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of each row are among the ``wanted`` greatest; ties by column, then row. int32 ``[ROWS]``."""
    bits = block.to(tl.int32, bitcast=True)  # of floats from 0 up, in their order; -1.0 is negative as an integer too
    low = 0  # at least `wanted` are from here up
    high = _BEYOND_ONE  # none is from here up
    for _ in range(_HALVINGS):
        middle = low + (high - low) // 2
        enough = tl.sum(tl.sum((bits >= middle).to(tl.int32), 1), 0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    above = (bits > low).to(tl.int32)
    tie = (bits == low).to(tl.int32)
    ties_before = tl.sum(tie, 0)
    ties_before = tl.cumsum(ties_before, 0) - ties_before
    rank = ties_before[None, :] + tl.cumsum(tie, 0) - tie
    left = wanted - tl.sum(tl.sum(above, 1), 0)
    return tl.sum(above + tl.where(rank < left, tie, 0), 1)


@Launcher
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _allocate_kernel(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    edges,
    logits,
    offsets,
    survival,
    histogram,
    verify_lens,
    qo_indptr,
    bs,
    wanted,
    slots,
    confidence_stride,
    survival_stride,
    depths,
    steps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
    H_BINS: tl.constexpr,
    H_SCALE: tl.constexpr,
    PATHS: tl.constexpr,
):
    """One program for the whole batch: it needs every survival to find the least that is still verified."""
    survivals: tl.constexpr = _path_survivals if PATHS else _survivals
    block = survivals(
        confidence,
        requests,
        edges,
        logits,
        offsets,
        survival,
        histogram,
        bs,
        confidence_stride,
        survival_stride,
        depths,
        steps,
        ROWS,
        COLUMNS,
        BINS,
        LEVELS,
        H_BINS,
        H_SCALE,
    )
    row = tl.arange(0, ROWS)
    lens = tl.where(row < bs, 1 + _top(block, wanted, ROWS, COLUMNS), 0)
    tl.store(verify_lens + row, lens, mask=row < slots)
    tl.store(qo_indptr, 0)
    tl.store(qo_indptr + 1 + row, tl.cumsum(lens, 0), mask=row < slots)


def allocate_verify_triton(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    model: AcceptanceModel,
    tokens: int,
    plan: VerifyPlan,
    *,
    paths: bool = False,
) -> None:
    """See `tessera_kernels.ops.verify.allocate_verify.allocate_verify`. One launch of one program."""
    bs, steps = confidence.shape
    slots = plan.verify_lens.shape[0]
    depths, bins = plan.histogram.shape[1], model.logits.shape[1]
    rows, columns = power_of_2(slots), power_of_2(depths)
    _allocate_kernel(
        (1, 1, 1),
        (
            confidence,
            requests,
            model.edges,
            model.logits,
            model.offsets,
            plan.survival,
            plan.histogram,
            plan.verify_lens,
            plan.qo_indptr,
        ),
        (bs, min(tokens - bs, bs * steps), slots, confidence.stride(0), plan.survival.stride(0), depths, steps),
        (rows, columns, bins, bins.bit_length() - 1, HISTOGRAM_BINS, _HISTOGRAM_SCALE, paths),
        num_warps=next((warps for elements, warps in _WARPS if rows * columns <= elements), 16),
    )
