"""The Triton kernel behind `tessera_kernels.top_rows.top_rows`.

A chunk is cut into segments of whole rows, one program each. A program finds its segment's values of largest magnitude
by a radix selection on the 15 bits of the magnitude: a histogram of the upper bits, one of the lower bits where the
limit lies, then one more pass that writes what lies above the limit, and of what lies on it the first. The program that
ends last merges its chunk's candidates in the same way. Among equal magnitudes the lowest place wins, as with
``torch.topk`` on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tessera_kernels.top_rows import INDEX_BYTES, PERIOD, VALUE_BYTES, Chunk

TILE = 4096
INFINITY = tl.constexpr(0x7F800000)
"""The bits of a float32."""
ROWS_PER_SEGMENT = 8
MOST_SEGMENTS = 512
"""Of one chunk: what the last program has to merge stays small; longer chunks get longer segments."""


@triton.jit
def _bfloat16_bits(value):  # type: ignore[no-untyped-def]
    """Rounded to the nearest, ties to even, as torch does; spelt out, for the interpreter cuts bits off."""
    exact = value.to(tl.int32, bitcast=True)
    rounded = ((exact + 0x7FFF + ((exact >> 16) & 1)) >> 16) & 0xFFFF
    is_nan = (exact & 0x7FFFFFFF) > INFINITY
    return tl.where(is_nan, 0x7FC0, rounded)


@triton.jit  # type: ignore[untyped-decorator]
def _row_keys(source, tile, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys, places and bits of one tile of a segment's rows; a key is magnitude + 1, or 0 for what does not count."""
    rows, slots, hidden_size, first, mask, tiles_per_row = source
    row = first + tile // tiles_per_row
    column = (tile % tiles_per_row) * TILE + tl.arange(0, TILE)
    counts = (column < hidden_size) & (((mask >> (row % 32)) & 1) == 1)
    slot = tl.load(slots + row).to(tl.int64)
    value = tl.load(rows + slot * hidden_size + column, mask=counts, other=0.0)
    bits = _bfloat16_bits(value.to(tl.float32))
    key = tl.where(counts, (bits & 0x7FFF) + 1, 0)
    return key, row.to(tl.int64) * hidden_size + column, bits


@triton.jit  # type: ignore[untyped-decorator]
def _candidate_keys(source, tile, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same for one tile of a chunk's candidates."""
    places, values, filled, count, topk, width = source
    entry = tile * TILE + tl.arange(0, TILE)
    segment = entry // topk
    inside = entry < count
    full = tl.load(filled + segment * width, mask=inside, other=0)
    counts = inside & (entry % topk < full)
    bits = tl.load(values + entry, mask=counts, other=0, cache_modifier=".cg").to(tl.int32)
    place = tl.load(places + entry, mask=counts, other=0, cache_modifier=".cg").to(tl.int64)
    return tl.where(counts, (bits & 0x7FFF) + 1, 0), place, bits


@triton.jit
def _limit(histogram, wanted):  # type: ignore[no-untyped-def]
    """The highest bin at or above which ``wanted`` entries lie, and how many lie above it."""
    bins = tl.arange(0, 256)
    from_here = tl.sum(histogram, 0) - tl.cumsum(histogram, 0) + histogram
    limit = tl.max(tl.where(from_here >= wanted, bins, 0), 0)
    return limit, tl.sum(tl.where(bins > limit, histogram, 0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _select(keys: tl.constexpr, source, tiles, wanted, out_places, out_values, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write places and bits of the ``wanted`` largest keys, the first of equal ones, in their order."""
    upper = tl.zeros((256,), tl.int32)
    for tile in range(tiles):
        key, place, bits = keys(source, tile, TILE)
        upper += tl.histogram(key >> 8, 256)
    high, above = _limit(upper, wanted)
    lower = tl.zeros((512,), tl.int32)
    for tile in range(tiles):
        key, place, bits = keys(source, tile, TILE)
        lower += tl.histogram(tl.where(key >> 8 == high, key & 255, 256), 512)
    only = tl.sum(tl.where(tl.arange(0, 2)[:, None] == 0, tl.reshape(lower, (2, 256)), 0), 0)
    low, also_above = _limit(only, wanted - above)
    limit = high * 256 + low
    ties = wanted - above - also_above
    written = tl.zeros((), tl.int32)
    tied = tl.zeros((), tl.int32)
    for tile in range(tiles):
        key, place, bits = keys(source, tile, TILE)
        equal = (key == limit).to(tl.int32)
        rank = tied + tl.cumsum(equal, 0) - equal
        keep = (key > limit) | ((equal == 1) & (rank < ties))
        kept = keep.to(tl.int32)
        target = written + tl.cumsum(kept, 0) - kept
        tl.store(out_places + target, place.to(tl.int32), mask=keep)
        tl.store(out_values + target, bits.to(tl.int16), mask=keep)
        written += tl.sum(kept, 0)
        tied += tl.sum(equal, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _top_kernel(  # type: ignore[no-untyped-def]
    rows,
    req_to_token,
    segments,
    chunks,
    candidate_places,
    candidate_values,
    out_places,
    out_values,
    hidden_size,
    token_stride,
    topk,
    place_stride,
    value_stride,
    tiles_per_row,
    TILE: tl.constexpr,
):
    """Program i: segment i. ``segments`` is ``[n, 4]``: chunk, first row, end row, values.

    ``chunks`` is ``[n, 8]``: request, start, first segment, segments, mask, values, ticket (0), unused.
    """
    own = segments + tl.program_id(0) * 4
    chunk = tl.load(own)
    first = tl.load(own + 1)
    end = tl.load(own + 2)
    about = chunks + chunk * 8
    slots = req_to_token + tl.load(about) * token_stride + tl.load(about + 1)
    mask = tl.load(about + 4)
    wanted = tl.load(own + 3).to(tl.int32)
    to = tl.program_id(0).to(tl.int64) * topk
    if wanted > 0:
        source = (rows, slots, hidden_size, first, mask, tiles_per_row)
        tiles = ((end - first) * tiles_per_row).to(tl.int32)
        _select(_row_keys, source, tiles, wanted, candidate_places + to, candidate_values + to, TILE)
    count = tl.load(about + 3)
    tl.debug_barrier()  # every thread's candidates are written before this program draws its ticket
    ticket = tl.atomic_add(about + 6, 1, sem="acq_rel", scope="gpu")
    if ticket == count - 1:
        begin = tl.load(about + 2)
        entries = (count * topk).to(tl.int32)
        merged = (
            candidate_places + begin * topk,
            candidate_values + begin * topk,
            segments + begin * 4 + 3,
            entries,
            topk,
            4,
        )
        final = tl.load(about + 5).to(tl.int32)
        places, values = out_places + chunk * place_stride, out_values + chunk * value_stride
        _select(_candidate_keys, merged, tl.cdiv(entries, TILE), final, places, values, TILE)


class _Plan(NamedTuple):
    """The tables of a launch: see `_top_kernel`."""

    segments: list[tuple[int, int, int, int]]
    chunks: list[tuple[int, int, int, int, int, int, int, int]]


def plan(chunks: Sequence[Chunk], hidden_size: int, topk: int) -> _Plan:
    """Cut chunks into segments."""
    made = _Plan([], [])
    for index, (request, start, end, mask, values) in enumerate(chunks):
        rows = end - start
        step = max(ROWS_PER_SEGMENT, -(-rows // MOST_SEGMENTS))
        begin = len(made.segments)
        for first in range(0, rows, step):
            upto = min(first + step, rows)
            counting = _counting(mask, upto) - _counting(mask, first)
            made.segments.append((index, first, upto, min(topk, counting * hidden_size)))
        made.chunks.append((request, start, begin, len(made.segments) - begin, mask, values, 0, 0))
    return made


def _counting(mask: int, rows: int) -> int:
    """How many of the first rows count."""
    turns, rest = divmod(rows, PERIOD)
    return turns * mask.bit_count() + (mask & ((1 << rest) - 1)).bit_count()


def top_rows_triton(rows: torch.Tensor, req_to_token: torch.Tensor, chunks: Sequence[Chunk], topk: int) -> torch.Tensor:
    """See `tessera_kernels.top_rows.top_rows`. One host-to-device copy, one launch."""
    segments, heads = plan(chunks, rows.shape[1], topk)
    numbers = [number for line in (*segments, *heads) for number in line]
    table = torch.tensor(numbers, dtype=torch.int64, pin_memory=rows.is_cuda).to(rows.device, non_blocking=True)
    width = INDEX_BYTES + VALUE_BYTES
    out = torch.zeros((len(chunks), topk * width), dtype=torch.uint8, device=rows.device)
    candidates = torch.empty((len(segments) * topk * width,), dtype=torch.uint8, device=rows.device)
    half = len(segments) * topk * INDEX_BYTES
    places, values = out[:, : topk * INDEX_BYTES].view(torch.int32), out[:, topk * INDEX_BYTES :].view(torch.int16)
    _top_kernel[(len(segments),)](
        rows,
        req_to_token,
        table,
        table[len(segments) * 4 :],
        candidates[:half].view(torch.int32),
        candidates[half:].view(torch.int16),
        places,
        values,
        rows.shape[1],
        req_to_token.stride(0),
        topk,
        places.stride(0),
        values.stride(0),
        triton.cdiv(rows.shape[1], TILE),
        TILE=TILE,
    )
    return out
