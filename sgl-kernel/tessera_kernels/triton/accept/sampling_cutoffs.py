"""The Triton kernels behind `tessera_kernels.ops.accept.sampling_cutoffs.sampling_cutoffs`.

A cutoff is found digit by digit, three bits of it in each pass over what may be sampled. Of most rows that is a few
hundred tokens, which are picked out first: a token with less than (1 - p) p / V of all is not among those that have the
share p, for all such tokens together have too little to matter. Rows of which more is left are passed over as a whole.
Where min-p cuts is known from the greatest logit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits
from tessera_kernels.triton.accept.accept_chains import CHUNK, chunks_of, sum_chunks
from tessera_kernels.triton.device.launch import Launcher, power_of_2

ROOM = 16_384
"""Candidates of a row that are picked out."""
BLOCK = 2048
"""Logits that a program looks at together."""
_WARPS = 16
_NOTHING = tl.constexpr(float("-inf"))
_LEAST = tl.constexpr(-(2**31))
_MAGNITUDE = tl.constexpr(2**31 - 1)
_DIGIT = tl.constexpr(3)
_DIGITS = tl.constexpr(11)
_WAYS = tl.constexpr(8)
_ROUNDING = tl.constexpr(1e-6)
"""More than what dividing a logit by a temperature, and multiplying it again, changes of it."""
_SHARE_FOR_COUNTS = tl.constexpr(0.01)
"""In the place of (1 - p) p where only k is asked for: with fewer candidates than k the whole row is passed over."""


@triton.jit
def _flipped(bits):  # type: ignore[no-untyped-def]
    """A float32's bits as an int32 in the order of the floats, or back."""
    return tl.where(bits < 0, bits ^ _MAGNITUDE, bits)


@triton.jit  # type: ignore[untyped-decorator]
def _top_and_mass(  # type: ignore[no-untyped-def]
    peaks, masses, row, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):
    """Of a dense row: the greatest logit by temperature, and the sum of what e^ gives less that."""
    chunk = tl.arange(0, SLOTS)
    peak = tl.load(peaks + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=_NOTHING)
    mass = tl.load(masses + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0.0)
    top = tl.max(peak, 0)
    top = tl.where(top == _NOTHING, 0.0, top)
    return top, tl.sum(mass * tl.exp(peak - top), 0)


@Launcher
@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _candidates_kernel(  # type: ignore[no-untyped-def]
    logits,
    qo_indptr,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    peaks,
    masses,
    counts,
    candidates,
    width,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Program (r, c) adds the candidates in chunk c of dense row r to those of the row, in any order."""
    place, chunk = tl.program_id(0), tl.program_id(1)
    request, within = place // width, place % width
    begin = tl.load(qo_indptr + request)
    k, p = tl.load(top_ks + request), tl.load(top_ps + request)
    if (within < tl.load(qo_indptr + request + 1) - begin) & ((k < VOCABULARY) | (p < 1.0)):
        top, mass = _top_and_mass(peaks, masses, place, CHUNKS, SLOTS)
        share = tl.where(p < 1.0, (1.0 - p) * p, _SHARE_FOR_COUNTS)
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        source = logits + (begin + within).to(tl.int64) * STRIDE + column
        value = tl.load(source, mask=column < VOCABULARY, other=_NOTHING).to(tl.float32)
        weight = tl.exp(value / tl.load(temperatures + request) - top)
        chosen = (column < VOCABULARY) & (weight >= share * mass / VOCABULARY)
        found = tl.sum(chosen.to(tl.int32), 0)
        if found > 0:
            first = tl.atomic_add(counts + place, found)
            slot = first + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(candidates + place.to(tl.int64) * ROOM + slot, value, mask=chosen & (slot < ROOM))


@triton.jit  # type: ignore[untyped-decorator]
def _weights(  # type: ignore[no-untyped-def]
    source, size, first, temperature, top, COUNTED: tl.constexpr, BLOCK: tl.constexpr
):
    """Keys of some logits, and what each counts: 1, or its probability times what all have in common."""
    column = first + tl.arange(0, BLOCK)
    value = tl.load(source + column, mask=column < size, other=_NOTHING).to(tl.float32)
    key = _flipped(value.to(tl.int32, bitcast=True))
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    if not COUNTED:
        weight = tl.exp(value / temperature - top)
    return key, tl.where(column < size, weight, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _greatest(  # type: ignore[no-untyped-def]
    source, size, wanted, temperature, top, COUNTED: tl.constexpr, BLOCK: tl.constexpr
):
    """The greatest key from which on there is as much as wanted."""
    way = tl.arange(0, _WAYS)
    found = tl.full((), _LEAST, tl.int32)
    for digit in range(_DIGITS):
        # From the highest bits; the last two are a digit of their own.
        shift = tl.maximum((32 - _DIGIT) - _DIGIT * digit, 0)
        bound = found + (way << shift)
        amounts = tl.zeros((BLOCK, _WAYS), tl.float32)
        for first in range(0, size, BLOCK):
            key, weight = _weights(source, size, first, temperature, top, COUNTED, BLOCK)
            amounts += tl.where(key[:, None] >= bound[None, :], weight[:, None], 0.0)
        enough = (tl.sum(amounts, 0) >= wanted) & (way > 0)
        found += tl.sum(enough.to(tl.int32), 0) << shift
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _floor(  # type: ignore[no-untyped-def]
    source, size, k, p, temperature, top, mass, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):
    """The key of the last logit that is sampled, of those in ``source``; of all there is ``mass``."""
    floor = tl.full((), _LEAST, tl.int32)
    if k < VOCABULARY:
        floor = _greatest(source, size, k.to(tl.float32), temperature, top, True, BLOCK)
    if p < 1.0:
        floor = tl.maximum(floor, _greatest(source, size, p * mass, temperature, top, False, BLOCK))
    return floor


@triton.jit
def _least_likely(top, min_p, temperature):  # type: ignore[no-untyped-def]
    """The least logit with a share of ``min_p`` of the greatest probability; the greatest logit is never below it."""
    greatest = top * temperature
    return greatest + tl.log(min_p) * temperature - _ROUNDING * tl.abs(greatest)


@Launcher
@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _cutoffs_kernel(  # type: ignore[no-untyped-def]
    logits,
    qo_indptr,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    peaks,
    masses,
    counts,
    candidates,
    cutoffs,
    width,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r finds the cutoff of dense row r, among its candidates where these are all that matters."""
    place = tl.program_id(0)
    request, within = place // width, place % width
    begin = tl.load(qo_indptr + request)
    if within < tl.load(qo_indptr + request + 1) - begin:
        k, p = tl.load(top_ks + request), tl.load(top_ps + request)
        floor = tl.full((), _LEAST, tl.int32)
        if (k < VOCABULARY) | (p < 1.0):
            temperature = tl.load(temperatures + request)
            top, mass = _top_and_mass(peaks, masses, place, CHUNKS, SLOTS)
            count = tl.load(counts + place)
            if (count <= ROOM) & ((k >= VOCABULARY) | (count >= k)):
                few = candidates + place.to(tl.int64) * ROOM
                floor = _floor(few, count, k, p, temperature, top, mass, VOCABULARY, BLOCK)
            else:
                row = logits + (begin + within).to(tl.int64) * STRIDE
                floor = _floor(row, VOCABULARY, k, p, temperature, top, mass, VOCABULARY, BLOCK)
        cutoff = tl.where(floor == _LEAST, _NOTHING, _flipped(floor).to(tl.float32, bitcast=True))
        min_p = tl.load(min_ps + request)
        if min_p > 0.0:
            top, _ = _top_and_mass(peaks, masses, place, CHUNKS, SLOTS)
            cutoff = tl.maximum(cutoff, _least_likely(top, min_p, tl.load(temperatures + request)))
        tl.store(cutoffs + begin + within, cutoff)


def sampling_cutoffs_triton(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    limits: SamplingLimits,
    width: int,
    cutoffs: torch.Tensor,
) -> None:
    """See `tessera_kernels.ops.accept.sampling_cutoffs`. Three launches: chunks of rows, twice, and rows."""
    places, chunks = len(limits.top_ks) * width, chunks_of(logits)
    sums = sum_chunks(logits, qo_indptr, limits.temperatures, None, places, width)
    counts = torch.zeros(places, dtype=torch.int32, device=logits.device)
    candidates = torch.empty((places, ROOM), device=logits.device)
    shape = logits.stride(0), logits.shape[1]
    picked = logits, qo_indptr, *limits, *sums, counts, candidates
    slots = chunks, power_of_2(chunks), ROOM
    _candidates_kernel((places, chunks, 1), picked, (width,), (*shape, CHUNK, *slots))
    _cutoffs_kernel((places, 1, 1), (*picked, cutoffs), (width,), (*shape, *slots, BLOCK), num_warps=_WARPS)
