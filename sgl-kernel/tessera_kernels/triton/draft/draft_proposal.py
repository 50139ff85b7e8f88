"""The Triton kernels of `tessera_kernels.ops.draft.draft_proposal`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.draft.draft_proposal import MAX_VALUE
from tessera_kernels.triton.device.inverse_cdf import inverse_cdf, sum_before
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

CHUNK = 4096
"""Logits of one program."""
_MINUS_INF = tl.constexpr(float("-inf"))
_MAX_VALUE = tl.constexpr(MAX_VALUE)
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _scaled_logits(logits, temperature, column, VOCABULARY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits divided by the temperature; NaN is minus infinity."""
    value = tl.load(logits + column, mask=column < VOCABULARY, other=_MINUS_INF).to(tl.float32) / temperature
    return tl.minimum(tl.where(value == value, value, _MINUS_INF), _MAX_VALUE)


@Launcher
@triton.jit  # type: ignore[untyped-decorator]
def _sums_kernel(  # type: ignore[no-untyped-def]
    logits, temperatures, maxima, sums, STRIDE: tl.constexpr, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr
):
    """Program (row, chunk): the greatest value of a chunk, and its sum of ``e^(value - greatest)``."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value = _scaled_logits(logits + row.to(tl.int64) * STRIDE, tl.load(temperatures + row), column, VOCABULARY)
    peak = tl.max(value, 0)
    cell = row * tl.num_programs(1) + chunk
    tl.store(maxima + cell, peak)
    tl.store(sums + cell, tl.sum(tl.exp(value - tl.where(peak == _MINUS_INF, 0.0, peak)), 0))


@Launcher
@triton.jit(do_not_specialize=["probability_stride"])  # type: ignore[untyped-decorator]
def _propose_kernel(  # type: ignore[no-untyped-def]
    logits,
    temperatures,
    coins,
    maxima,
    sums,
    proposals,
    index,
    probability,
    probability_stride,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Program (row, chunk) writes q of its chunk; that of the sampled chunk the token, the first one the maximum."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    slot = tl.arange(0, SLOTS)
    maximum = tl.load(maxima + row * CHUNKS + slot, mask=slot < CHUNKS, other=_MINUS_INF)
    partial = tl.load(sums + row * CHUNKS + slot, mask=slot < CHUNKS, other=0.0)
    peak = tl.max(maximum, 0)
    empty = peak == _MINUS_INF
    peak = tl.where(empty, 0.0, peak)
    partial = partial * tl.exp(maximum - peak)
    partial = tl.where(empty, tl.where(slot == 0, 1.0, 0.0), partial)
    total = tl.sum(partial, 0)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value = _scaled_logits(logits + row.to(tl.int64) * STRIDE, tl.load(temperatures + row), column, VOCABULARY)
    weight = tl.exp(value - peak)
    weight = tl.where(empty, tl.where(column == 0, 1.0, 0.0), weight)
    tl.store(proposals + row.to(tl.int64) * VOCABULARY + column, weight / total, mask=column < VOCABULARY)
    target = tl.load(coins + row) * total
    if inverse_cdf(partial, 0.0, target, SLOTS) == chunk:
        token = chunk * CHUNK + inverse_cdf(weight, sum_before(partial, chunk, SLOTS), target, CHUNK)
        tl.store(index + row, token.to(tl.int64))
    if chunk == 0:
        tl.store(probability + row * probability_stride, tl.where(empty, 0.0, 1.0 / total))


def draft_proposal_triton(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    coins: torch.Tensor,
    proposals: torch.Tensor,
    index: torch.Tensor,
    probability: torch.Tensor,
) -> None:
    """See `tessera_kernels.ops.draft.draft_proposal`. Two launches."""
    rows, vocabulary = logits.shape
    chunks = -(-vocabulary // CHUNK)
    maxima, sums = (torch.empty(rows * chunks, dtype=torch.float32, device=logits.device) for _ in range(2))
    shape = logits.stride(0), vocabulary, CHUNK
    grid = rows, chunks, 1
    _sums_kernel(grid, (logits, temperatures, maxima, sums), (), shape, num_warps=_WARPS)
    _propose_kernel(
        grid,
        (logits, temperatures, coins, maxima, sums, proposals, index, probability),
        (probability.stride(0),),
        (*shape, chunks, power_of_2(chunks)),
        num_warps=_WARPS,
    )
