"""The Triton kernel of `tessera_kernels.ops.verify.allocate_verify`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, check_budget
from tessera_kernels.triton.device.acceptance_model import acceptance, load_requests
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

# Above the float bits of all survivals, which are from 0 to 1; and the steps of a binary search below it.
_ABOVE_ONE = tl.constexpr(0x3F800001)
_SEARCH_STEPS = tl.constexpr(30)
_HISTOGRAM_SCALE = int(1 / HISTOGRAM_UNIT)
_NUMBERS = ["bs", "budget", "slots", "confidence_stride", "survival_stride", "depths", "steps"]
_WARPS = ((1024, 4), (8192, 8))
"""Elements of the block, and the warps up to this size; 16 for larger blocks."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_to_histogram(  # type: ignore[no-untyped-def]
    bins, survival, counted, depths, H_BINS: tl.constexpr, H_SCALE: tl.constexpr
):
    """Add survivals to the histogram; ``bins`` points to the first bin of each survival's column."""
    cell = bins + tl.minimum((survival * H_BINS).to(tl.int32), H_BINS - 1)
    tl.atomic_add(cell, 1, mask=counted, sem="relaxed")
    tl.atomic_add(cell + depths * H_BINS, (survival * H_SCALE + 0.5).to(tl.int32), mask=counted, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _chain_survivals(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    model,
    outputs,
    sizes,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
    H_BINS: tl.constexpr,
    H_SCALE: tl.constexpr,
):
    """Store and count the survivals of chains. Returns them ``[ROWS, COLUMNS]``, -1 where there is no draft token.

    ``model`` has pointers to edges, logits and offsets, ``outputs`` to survivals and histogram; ``sizes`` has numbers.
    """
    edges, logits, offsets = model
    survival_out, histogram = outputs
    bs, confidence_stride, survival_stride, depths, steps = sizes
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = row < bs
    _request, offset, drafted = load_requests(confidence, requests, offsets, row, live, confidence_stride)
    running = tl.where(drafted, 1.0, 0.0)
    block = tl.full((ROWS, COLUMNS), -1.0, tl.float32)
    for depth in range(steps):
        value = tl.load(confidence + row * confidence_stride + depth, mask=live, other=0.0)
        _, step = acceptance(value, edges, logits + depth * BINS, offset, BINS, LEVELS)
        running *= step  # in order: an associative scan may round a deeper token's survival above an earlier one's
        tl.store(survival_out + row * survival_stride + depth, running, mask=live)
        here = (column == depth)[None, :] & live[:, None]
        block = tl.where(here, running[:, None], block)
        _add_to_histogram(histogram + depth * H_BINS, running, drafted, depths, H_BINS, H_SCALE)
    return block


@triton.jit
def _minimum(a, b):  # type: ignore[no-untyped-def]
    return tl.minimum(a, b)


@triton.jit  # type: ignore[untyped-decorator]
def _path_survivals(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    model,
    outputs,
    sizes,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
    H_BINS: tl.constexpr,
    H_SCALE: tl.constexpr,
):
    """The same for trees, for all nodes at once: each has its own path score, and a minimum does not round."""
    edges, logits, offsets = model
    survival_out, histogram = outputs
    bs, confidence_stride, survival_stride, depths, steps = sizes
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = row < bs
    node = live[:, None] & (column < steps)[None, :]
    _request, offset, drafted = load_requests(confidence, requests, offsets, row, live, confidence_stride)
    score = tl.load(confidence + row[:, None] * confidence_stride + column[None, :], mask=node, other=0.0)
    _, accepted = acceptance(score, edges, logits, offset[:, None], BINS, LEVELS)
    survival = tl.where(drafted[:, None], tl.associative_scan(accepted, 1, _minimum), 0.0)
    tl.store(survival_out + row[:, None] * survival_stride + column[None, :], survival, mask=node)
    _add_to_histogram(histogram + column[None, :] * H_BINS, survival, node & drafted[:, None], depths, H_BINS, H_SCALE)
    return tl.where(node, survival, -1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _count_greatest(block, budget, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of each row are among the ``budget`` greatest; ties by column, then row. int32 ``[ROWS]``."""
    bits = block.to(tl.int32, bitcast=True)  # non-negative floats order like their bits; those of -1.0 are negative
    low = 0  # at least `budget` values are at or above it
    high = _ABOVE_ONE  # no value is at or above it
    for _ in range(_SEARCH_STEPS):
        middle = low + (high - low) // 2
        enough = tl.sum(tl.sum((bits >= middle).to(tl.int32), 1), 0) >= budget
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    above = (bits > low).to(tl.int32)
    tie = (bits == low).to(tl.int32)
    ties_before = tl.sum(tie, 0)
    ties_before = tl.cumsum(ties_before, 0) - ties_before
    rank = ties_before[None, :] + tl.cumsum(tie, 0) - tie
    rest = budget - tl.sum(tl.sum(above, 1), 0)
    return tl.sum(above + tl.where(rank < rest, tie, 0), 1)


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
    budget,
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
    """One program for the whole batch, because the threshold depends on every survival."""
    survivals: tl.constexpr = _path_survivals if PATHS else _chain_survivals
    model, outputs = (edges, logits, offsets), (survival, histogram)
    sizes = bs, confidence_stride, survival_stride, depths, steps
    block = survivals(confidence, requests, model, outputs, sizes, ROWS, COLUMNS, BINS, LEVELS, H_BINS, H_SCALE)
    row = tl.arange(0, ROWS)
    lens = tl.where(row < bs, 1 + _count_greatest(block, budget, ROWS, COLUMNS), 0)
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
    """See `tessera_kernels.ops.verify.allocate_verify`. One launch of one program."""
    check_budget(confidence, tokens)
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
