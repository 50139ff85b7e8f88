"""The Triton kernel behind `tessera_kernels.sampling_cutoffs.sampling_cutoffs`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.launch import Launcher

BLOCK = 4096
"""Logits that a program looks at together."""
_WARPS = 16
_NOTHING = tl.constexpr(float("-inf"))
_LEAST = tl.constexpr(-(2**31))
_MAGNITUDE = tl.constexpr(2**31 - 1)
_DIGIT = tl.constexpr(3)
_DIGITS = tl.constexpr(11)
_WAYS = tl.constexpr(8)


@triton.jit
def _key(value):  # type: ignore[no-untyped-def]
    """An int32 for each float32, in the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ _MAGNITUDE, bits)


@triton.jit  # type: ignore[untyped-decorator]
def _peak(row, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The greatest logit."""
    peak = tl.full((BLOCK,), _NOTHING, tl.float32)
    for first in range(0, VOCABULARY, BLOCK):
        column = first + tl.arange(0, BLOCK)
        peak = tl.maximum(peak, tl.load(row + column, mask=column < VOCABULARY, other=_NOTHING).to(tl.float32))
    return tl.max(peak, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(  # type: ignore[no-untyped-def]
    row, first, floor, temperature, top, COUNTED: tl.constexpr, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):
    """Keys of a block, and what each counts: 1, or its probability times what all have in common; 0 below the floor."""
    column = first + tl.arange(0, BLOCK)
    value = tl.load(row + column, mask=column < VOCABULARY, other=_NOTHING).to(tl.float32)
    key = _key(value)
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    if not COUNTED:
        weight = tl.exp(value / temperature - top)
    return key, tl.where((column < VOCABULARY) & (key >= floor), weight, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _greatest(  # type: ignore[no-untyped-def]
    row, wanted, floor, temperature, top, COUNTED: tl.constexpr, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):
    """The greatest key from which on there is as much as wanted, three bits in each pass over the row."""
    way = tl.arange(0, _WAYS)
    found = tl.full((), _LEAST, tl.int32)
    for digit in range(_DIGITS):
        # From the highest bits; the last two are a digit of their own.
        shift = tl.maximum((32 - _DIGIT) - _DIGIT * digit, 0)
        bound = found + (way << shift)
        amounts = tl.zeros((BLOCK, _WAYS), tl.float32)
        for first in range(0, VOCABULARY, BLOCK):
            key, weight = _weights(row, first, floor, temperature, top, COUNTED, VOCABULARY, BLOCK)
            amounts += tl.where(key[:, None] >= bound[None, :], weight[:, None], 0.0)
        enough = (tl.sum(amounts, 0) >= wanted) & (way > 0)
        found += tl.sum(enough.to(tl.int32), 0) << shift
    return found


@Launcher
@triton.jit  # type: ignore[untyped-decorator]
def _cutoffs_kernel(  # type: ignore[no-untyped-def]
    logits,
    qo_indptr,
    temperatures,
    top_ks,
    top_ps,
    cutoffs,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r finds the cutoff of dense row r."""
    request, within = tl.program_id(0) // WIDTH, tl.program_id(0) % WIDTH
    begin = tl.load(qo_indptr + request)
    if within < tl.load(qo_indptr + request + 1) - begin:
        temperature = tl.load(temperatures + request)
        k, p = tl.load(top_ks + request), tl.load(top_ps + request)
        row = logits + (begin + within).to(tl.int64) * STRIDE
        floor = tl.full((), _LEAST, tl.int32)
        if (k < VOCABULARY) | (p < 1.0):
            peak = _peak(row, VOCABULARY, BLOCK)
            if k == 1:
                floor = _key(peak)
            elif k < VOCABULARY:
                floor = _greatest(row, k.to(tl.float32), floor, temperature, 0.0, True, VOCABULARY, BLOCK)
            if (p < 1.0) & (k > 1):
                top = peak / temperature
                mass = tl.zeros((BLOCK,), tl.float32)
                for first in range(0, VOCABULARY, BLOCK):
                    _, weight = _weights(row, first, floor, temperature, top, False, VOCABULARY, BLOCK)
                    mass += weight
                wanted = p * tl.sum(mass, 0)
                floor = tl.maximum(floor, _greatest(row, wanted, floor, temperature, top, False, VOCABULARY, BLOCK))
        bits = tl.where(floor < 0, floor ^ _MAGNITUDE, floor)
        cutoff = tl.where(floor == _LEAST, _NOTHING, bits.to(tl.float32, bitcast=True))
        tl.store(cutoffs + begin + within, cutoff)


def sampling_cutoffs_triton(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    width: int,
    cutoffs: torch.Tensor,
) -> None:
    """See `tessera_kernels.sampling_cutoffs.sampling_cutoffs`. One launch."""
    _cutoffs_kernel(
        (len(top_ks) * width, 1, 1),
        (logits, qo_indptr, temperatures, top_ks, top_ps, cutoffs),
        (),
        (width, logits.stride(0), logits.shape[1], BLOCK),
        num_warps=_WARPS,
    )
