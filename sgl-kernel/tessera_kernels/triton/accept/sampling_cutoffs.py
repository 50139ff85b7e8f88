"""The Triton kernels of `tessera_kernels.ops.accept.sampling_cutoffs`.

Radix selection: each pass over the candidates of a row finds three bits of its cutoff. Candidates are collected first,
a few hundred tokens of most rows: a token with a probability below (1 - p) p / V is never in the top-p set, because all
such tokens together have too little probability to matter. Rows with more candidates than fit are passed over as a
whole. The cutoff of min-p follows from the greatest logit.
"""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits
from tessera_kernels.triton.device.chunk_softmax import Chunks, chunk_softmax
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

CAPACITY = 16_384
"""The most candidates of a row that are collected."""
BLOCK = 2048
"""Logits that a program reads at once."""
_WARPS = 16
_MINUS_INF = tl.constexpr(float("-inf"))
_MIN_KEY = tl.constexpr(-(2**31))
_MAGNITUDE = tl.constexpr(2**31 - 1)
_DIGIT_BITS = tl.constexpr(3)
_DIGITS = tl.constexpr(11)
_RADIX = tl.constexpr(8)
_ROUNDING = tl.constexpr(1e-6)
"""Relative error bound of dividing a logit by a temperature and multiplying it again."""
_TOP_K_FRACTION = tl.constexpr(0.01)
"""Replaces (1 - p) p without top-p: with fewer candidates than k the whole row is passed over."""


@triton.jit
def _order_key(bits):  # type: ignore[no-untyped-def]
    """The bits of a float32 as an int32 that orders like the floats; it is its own inverse."""
    return tl.where(bits < 0, bits ^ _MAGNITUDE, bits)


@triton.jit  # type: ignore[untyped-decorator]
def _row_softmax(  # type: ignore[no-untyped-def]
    maxima, sums, row, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):
    """A padded row's greatest logit / temperature, and its sum of ``e^(logit / temperature - greatest)``."""
    chunk = tl.arange(0, SLOTS)
    maximum = tl.load(maxima + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=_MINUS_INF)
    partial = tl.load(sums + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0.0)
    peak = tl.max(maximum, 0)
    peak = tl.where(peak == _MINUS_INF, 0.0, peak)
    return peak, tl.sum(partial * tl.exp(maximum - peak), 0)


@Launcher
@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _candidates_kernel(  # type: ignore[no-untyped-def]
    logits,
    qo_indptr,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    maxima,
    sums,
    counts,
    candidates,
    width,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Program (r, c) appends the candidates in chunk c of padded row r to those of the row, in any order."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    request, within = row // width, row % width
    begin = tl.load(qo_indptr + request)
    k, p = tl.load(top_ks + request), tl.load(top_ps + request)
    if (within < tl.load(qo_indptr + request + 1) - begin) & ((k < VOCABULARY) | (p < 1.0)):
        peak, total = _row_softmax(maxima, sums, row, CHUNKS, SLOTS)
        fraction = tl.where(p < 1.0, (1.0 - p) * p, _TOP_K_FRACTION)
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        source = logits + (begin + within).to(tl.int64) * STRIDE + column
        value = tl.load(source, mask=column < VOCABULARY, other=_MINUS_INF).to(tl.float32)
        weight = tl.exp(value / tl.load(temperatures + request) - peak)
        chosen = (column < VOCABULARY) & (weight >= fraction * total / VOCABULARY)
        count = tl.sum(chosen.to(tl.int32), 0)
        if count > 0:
            first = tl.atomic_add(counts + row, count)
            slot = first + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(candidates + row.to(tl.int64) * CAPACITY + slot, value, mask=chosen & (slot < CAPACITY))


@triton.jit  # type: ignore[untyped-decorator]
def _keys_and_weights(  # type: ignore[no-untyped-def]
    source, size, first, temperature, peak, COUNTED: tl.constexpr, BLOCK: tl.constexpr
):
    """Keys of a block of logits, and their weights: 1 if COUNTED, else probabilities up to a common factor."""
    column = first + tl.arange(0, BLOCK)
    value = tl.load(source + column, mask=column < size, other=_MINUS_INF).to(tl.float32)
    key = _order_key(value.to(tl.int32, bitcast=True))
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    if not COUNTED:
        weight = tl.exp(value / temperature - peak)
    return key, tl.where(column < size, weight, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _select(  # type: ignore[no-untyped-def]
    source, size, target, temperature, peak, COUNTED: tl.constexpr, BLOCK: tl.constexpr
):
    """The greatest key such that the keys from it up have at least the target's weight."""
    digit_value = tl.arange(0, _RADIX)
    selected = tl.full((), _MIN_KEY, tl.int32)
    for digit in range(_DIGITS):
        # From the most significant bits; the last digit has two.
        shift = tl.maximum((32 - _DIGIT_BITS) - _DIGIT_BITS * digit, 0)
        bound = selected + (digit_value << shift)
        amounts = tl.zeros((BLOCK, _RADIX), tl.float32)
        for first in range(0, size, BLOCK):
            key, weight = _keys_and_weights(source, size, first, temperature, peak, COUNTED, BLOCK)
            amounts += tl.where(key[:, None] >= bound[None, :], weight[:, None], 0.0)
        enough = (tl.sum(amounts, 0) >= target) & (digit_value > 0)
        selected += tl.sum(enough.to(tl.int32), 0) << shift
    return selected


@triton.jit  # type: ignore[untyped-decorator]
def _cutoff_key(  # type: ignore[no-untyped-def]
    source, size, k, p, temperature, peak, total, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):
    """The key of the least logit that is sampled, among those in ``source``; ``total`` is the row's sum of weights."""
    floor = tl.full((), _MIN_KEY, tl.int32)
    if k < VOCABULARY:
        floor = _select(source, size, k.to(tl.float32), temperature, peak, True, BLOCK)
    if p < 1.0:
        floor = tl.maximum(floor, _select(source, size, p * total, temperature, peak, False, BLOCK))
    return floor


@triton.jit
def _min_p_cutoff(peak, min_p, temperature):  # type: ignore[no-untyped-def]
    """The logit with ``min_p`` times the greatest probability; never above the greatest logit."""
    greatest = peak * temperature
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
    maxima,
    sums,
    counts,
    candidates,
    cutoffs,
    width,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r finds the cutoff of padded row r, among its candidates where these suffice."""
    row = tl.program_id(0)
    request, within = row // width, row % width
    begin = tl.load(qo_indptr + request)
    if within < tl.load(qo_indptr + request + 1) - begin:
        k, p = tl.load(top_ks + request), tl.load(top_ps + request)
        floor = tl.full((), _MIN_KEY, tl.int32)
        if (k < VOCABULARY) | (p < 1.0):
            temperature = tl.load(temperatures + request)
            peak, total = _row_softmax(maxima, sums, row, CHUNKS, SLOTS)
            count = tl.load(counts + row)
            if (count <= CAPACITY) & ((k >= VOCABULARY) | (count >= k)):
                source = candidates + row.to(tl.int64) * CAPACITY
                floor = _cutoff_key(source, count, k, p, temperature, peak, total, VOCABULARY, BLOCK)
            else:
                whole = logits + (begin + within).to(tl.int64) * STRIDE
                floor = _cutoff_key(whole, VOCABULARY, k, p, temperature, peak, total, VOCABULARY, BLOCK)
        cutoff = tl.where(floor == _MIN_KEY, _MINUS_INF, _order_key(floor).to(tl.float32, bitcast=True))
        min_p = tl.load(min_ps + request)
        if min_p > 0.0:
            peak, _ = _row_softmax(maxima, sums, row, CHUNKS, SLOTS)
            cutoff = tl.maximum(cutoff, _min_p_cutoff(peak, min_p, tl.load(temperatures + request)))
        tl.store(cutoffs + begin + within, cutoff)


def sampling_cutoffs_triton(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    limits: SamplingLimits,
    width: int,
    cutoffs: torch.Tensor,
) -> None:
    """See `tessera_kernels.ops.accept.sampling_cutoffs`. Three launches: chunks of rows, twice, and rows."""
    rows, chunks = len(limits.top_ks) * width, Chunks.of(logits)
    partial = chunk_softmax(logits, qo_indptr, limits.temperatures, None, rows, width, chunks)
    counts = torch.zeros(rows, dtype=torch.int32, device=logits.device)
    candidates = torch.empty((rows, CAPACITY), device=logits.device)
    tensors = logits, qo_indptr, *limits, *partial, counts, candidates
    slots = power_of_2(chunks.per_row)
    _candidates_kernel((rows, chunks.per_row, 1), tensors, (width,), (*chunks, slots, CAPACITY))
    constants = chunks.stride, chunks.vocabulary, chunks.per_row, slots, CAPACITY, BLOCK
    _cutoffs_kernel((rows, 1, 1), (*tensors, cutoffs), (width,), constants, num_warps=_WARPS)
