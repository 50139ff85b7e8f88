"""The Triton kernels behind `tessera_kernels.ops.draft.draft_proposal.draft_proposal`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.draft.draft_proposal import MOST
from tessera_kernels.triton.device.draw_token import mass_before, place_of
from tessera_kernels.triton.device.launch import Launcher, power_of_2

CHUNK = 4096
"""Logits of one program."""
_NOTHING = tl.constexpr(float("-inf"))
_MOST = tl.constexpr(MOST)
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _values(logits, temperature, column, KNOWN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits over the temperature; what is no number is minus infinity."""
    value = tl.load(logits + column, mask=column < KNOWN, other=_NOTHING).to(tl.float32) / temperature
    return tl.minimum(tl.where(value == value, value, _NOTHING), _MOST)


@Launcher
@triton.jit  # type: ignore[untyped-decorator]
def _sums_kernel(  # type: ignore[no-untyped-def]
    logits, temperatures, peaks, masses, STRIDE: tl.constexpr, KNOWN: tl.constexpr, CHUNK: tl.constexpr
):
    """Program (row, chunk): the greatest value of a chunk, and what e^ of all of them adds up to beside it."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value = _values(logits + row.to(tl.int64) * STRIDE, tl.load(temperatures + row), column, KNOWN)
    peak = tl.max(value, 0)
    cell = row * tl.num_programs(1) + chunk
    tl.store(peaks + cell, peak)
    tl.store(masses + cell, tl.sum(tl.exp(value - tl.where(peak == _NOTHING, 0.0, peak)), 0))


@Launcher
@triton.jit(do_not_specialize=["probability_stride"])  # type: ignore[untyped-decorator]
def _propose_kernel(  # type: ignore[no-untyped-def]
    logits,
    temperatures,
    coins,
    peaks,
    masses,
    proposals,
    index,
    probability,
    probability_stride,
    STRIDE: tl.constexpr,
    KNOWN: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Program (row, chunk) writes q of its chunk; that of the chosen chunk draws, the first one says how sure q is."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    slot = tl.arange(0, SLOTS)
    peak = tl.load(peaks + row * CHUNKS + slot, mask=slot < CHUNKS, other=_NOTHING)
    mass = tl.load(masses + row * CHUNKS + slot, mask=slot < CHUNKS, other=0.0)
    top = tl.max(peak, 0)
    nothing = top == _NOTHING
    top = tl.where(nothing, 0.0, top)
    mass = mass * tl.exp(peak - top)
    mass = tl.where(nothing, tl.where(slot == 0, 1.0, 0.0), mass)
    total = tl.sum(mass, 0)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    weight = tl.exp(_values(logits + row.to(tl.int64) * STRIDE, tl.load(temperatures + row), column, KNOWN) - top)
    weight = tl.where(nothing, tl.where(column == 0, 1.0, 0.0), weight)
    tl.store(proposals + row.to(tl.int64) * KNOWN + column, weight / total, mask=column < KNOWN)
    wanted = tl.load(coins + row) * total
    if place_of(mass, 0.0, wanted, SLOTS) == chunk:
        token = chunk * CHUNK + place_of(weight, mass_before(mass, chunk, SLOTS), wanted, CHUNK)
        tl.store(index + row, token.to(tl.int64))
    if chunk == 0:
        tl.store(probability + row * probability_stride, tl.where(nothing, 0.0, 1.0 / total))


def draft_proposal_triton(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    coins: torch.Tensor,
    proposals: torch.Tensor,
    index: torch.Tensor,
    probability: torch.Tensor,
) -> None:
    """See `tessera_kernels.ops.draft.draft_proposal.draft_proposal`. Two launches."""
    rows, known = logits.shape
    chunks = -(-known // CHUNK)
    peaks, masses = (torch.empty(rows * chunks, dtype=torch.float32, device=logits.device) for _ in range(2))
    shape = logits.stride(0), known, CHUNK
    grid = rows, chunks, 1
    _sums_kernel(grid, (logits, temperatures, peaks, masses), (), shape, num_warps=_WARPS)
    _propose_kernel(
        grid,
        (logits, temperatures, coins, peaks, masses, proposals, index, probability),
        (probability.stride(0),),
        (*shape, chunks, power_of_2(chunks)),
        num_warps=_WARPS,
    )
