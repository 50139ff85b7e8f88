"""The Triton kernel behind `tessera_kernels.ops.rows.top_rows.top_rows`.

A chunk is cut into segments of whole rows, one program each. A program finds its segment's values of largest magnitude
by a radix selection on the 15 bits of the magnitude: a histogram of the upper bits, one of the lower bits where the
limit lies, then one more pass that writes what lies above the limit, and of what lies on it the first. The program that
ends last merges its chunk's candidates in the same way. Among equal magnitudes the lowest place wins, as with
``torch.topk`` on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.rows.top_rows import INDEX_BYTES, VALUE_BYTES, Chunk, Workspace
from tessera_kernels.triton.device.launch import Launcher
from tessera_kernels.triton.device.pinned import table_and_output

TILE = 4096
WARPS = 8
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
    places, values, filled, count, topk = source
    entry = tile * TILE + tl.arange(0, TILE)
    segment = entry // topk
    inside = entry < count
    full = tl.load(filled + segment, mask=inside, other=0, cache_modifier=".cg")
    counts = inside & (entry % topk < full)
    bits = tl.load(values + entry, mask=counts, other=0, cache_modifier=".cg")
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
        tl.store(out_values + target, bits.to(out_values.dtype.element_ty), mask=keep)
        written += tl.sum(kept, 0)
        tied += tl.sum(equal, 0)


@triton.jit
def _counting(mask, rows):  # type: ignore[no-untyped-def]
    """How many of the first rows count."""
    bit = tl.arange(0, 32)
    counts = ((mask >> bit) & 1) == 1
    whole = tl.sum(counts.to(tl.int64), 0)
    return rows // 32 * whole + tl.sum((counts & (bit < rows % 32)).to(tl.int64), 0)


@Launcher
@triton.jit(do_not_specialize=["token_stride", "segment_count"])  # type: ignore[untyped-decorator]
def _top_kernel(  # type: ignore[no-untyped-def]
    rows,
    req_to_token,
    chunks,
    tickets,
    filled,
    out_places,
    out_values,
    token_stride,
    segment_count,
    HIDDEN_SIZE: tl.constexpr,
    TOPK: tl.constexpr,
    OUT_BYTES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (c, s): segment s of chunk c, if it has so many.

    ``chunks`` is ``[n, 7]``: request, start, rows, mask, values, rows of a segment, segments before. It and the output
    are the host's. ``tickets`` ``[n]`` tells the GPU who is last; it is zero, and left so. ``filled`` says how many
    candidates each segment has; their places follow, and then their bits.
    """
    tiles_per_row: tl.constexpr = (HIDDEN_SIZE + TILE - 1) // TILE
    about = chunks + tl.program_id(0) * 7
    length = tl.load(about + 2)
    step = tl.load(about + 5)
    first = tl.program_id(1) * step
    candidate_places = filled + segment_count
    candidate_values = candidate_places + segment_count.to(tl.int64) * TOPK
    if first < length:
        mask = tl.load(about + 3)
        before = tl.load(about + 6)
        end = tl.minimum(first + step, length)
        own = before + tl.program_id(1)
        counting = _counting(mask, end) - _counting(mask, first)
        wanted = tl.minimum(counting * HIDDEN_SIZE, TOPK).to(tl.int32)
        if wanted > 0:
            slots = req_to_token + tl.load(about) * token_stride + tl.load(about + 1)
            source = (rows, slots, HIDDEN_SIZE, first, mask, tiles_per_row)
            tiles = ((end - first) * tiles_per_row).to(tl.int32)
            to = own * TOPK
            _select(_row_keys, source, tiles, wanted, candidate_places + to, candidate_values + to, TILE)
        tl.store(filled + own, wanted)
        segments = (length + step - 1) // step
        tl.debug_barrier()  # every thread's candidates are written before this program draws its ticket
        ticket = tl.atomic_add(tickets + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        if ticket == segments - 1:
            tl.store(tickets + tl.program_id(0), 0)
            entries = (segments * TOPK).to(tl.int32)
            begin = before * TOPK
            merged = (candidate_places + begin, candidate_values + begin, filled + before, entries, TOPK)
            chunk = tl.program_id(0).to(tl.int64)
            places = out_places + chunk * (OUT_BYTES // 4)
            values = out_values + chunk * (OUT_BYTES // 2) + 2 * TOPK
            final = tl.load(about + 4).to(tl.int32)
            _select(_candidate_keys, merged, tl.cdiv(entries, TILE), final, places, values, TILE)


def top_rows_triton(
    rows: torch.Tensor,
    req_to_token: torch.Tensor,
    chunks: Sequence[Chunk],
    topk: int,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """See `tessera_kernels.ops.rows.top_rows.top_rows`. One launch and no copies."""
    table, before, most = [], 0, 0
    for request, start, end, mask, values in chunks:
        step = max(ROWS_PER_SEGMENT, -(-(end - start) // MOST_SEGMENTS))
        segments = -(-(end - start) // step)
        table.append((request, start, end - start, mask, values, step, before))
        before, most = before + segments, max(most, segments)
    width = topk * (INDEX_BYTES + VALUE_BYTES)
    padded = -(-width // 8) * 8
    about, out = table_and_output(table, padded, pin_memory=rows.is_cuda)
    out.numpy().fill(0)  # torch would wake its threads for more than 32 KiB, which takes them milliseconds
    workspace = workspace or Workspace()
    workspace.reserve(len(chunks), before * (1 + 2 * topk), rows.device, stream)
    _top_kernel(
        (len(chunks), most, 1),
        (
            rows,
            req_to_token,
            about,
            workspace.tickets,
            workspace.candidates,
            out.view(torch.int32),
            out.view(torch.int16),
        ),
        (req_to_token.stride(0), before),
        (rows.shape[1], topk, padded, TILE),
        num_warps=WARPS,
        stream=stream,
    )
    return out[:, :width]
