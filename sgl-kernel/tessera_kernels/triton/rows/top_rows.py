"""The Triton kernel of `tessera_kernels.ops.rows.top_rows`.

A chunk is divided into segments of whole rows, one program each. A program finds its segment's values of largest
magnitude by radix selection on the 15 bits of the magnitude: a histogram of the upper bits, one of the lower bits in
the threshold's bin, then a pass that writes the values above the threshold and the first of those equal to it. The last
program of a chunk to finish merges the candidates in the same way. Among equal magnitudes the lowest index wins, as in
``torch.topk`` on CUDA.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.rows.top_rows import INDEX_BYTES, VALUE_BYTES, Chunk, Workspace
from tessera_kernels.triton.device.launcher import Launcher
from tessera_kernels.triton.device.pinned_memory import table_and_output

TILE = 4096
"""Values that a program reads at once."""
WARPS = 8
_INFINITY_BITS = tl.constexpr(0x7F800000)
MIN_ROWS_PER_SEGMENT = 8
"""A program reads a segment. The last one of a chunk may be shorter."""
MAX_SEGMENTS = 512
"""Of a chunk, which limits what its last program merges; longer chunks have longer segments."""


@triton.jit
def _bfloat16_bits(value):  # type: ignore[no-untyped-def]
    """Round to nearest even, as torch does. Explicit, because Triton's interpreter truncates."""
    exact = value.to(tl.int32, bitcast=True)
    rounded = ((exact + 0x7FFF + ((exact >> 16) & 1)) >> 16) & 0xFFFF
    is_nan = (exact & 0x7FFFFFFF) > _INFINITY_BITS
    return tl.where(is_nan, 0x7FC0, rounded)


@triton.jit  # type: ignore[untyped-decorator]
def _row_keys(source, tile, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys, indices and bits of one tile of a segment's rows. A key is magnitude + 1, or 0 where not selected."""
    rows, slots, hidden_size, first, mask, tiles_per_row = source
    row = first + tile // tiles_per_row
    column = (tile % tiles_per_row) * TILE + tl.arange(0, TILE)
    selected = (column < hidden_size) & (((mask >> (row % 32)) & 1) == 1)
    slot = tl.load(slots + row).to(tl.int64)
    value = tl.load(rows + slot * hidden_size + column, mask=selected, other=0.0)
    bits = _bfloat16_bits(value.to(tl.float32))
    key = tl.where(selected, (bits & 0x7FFF) + 1, 0)
    return key, row.to(tl.int64) * hidden_size + column, bits


@triton.jit  # type: ignore[untyped-decorator]
def _candidate_keys(source, tile, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same for one tile of a chunk's candidates."""
    indices, values, filled, count, topk = source
    entry = tile * TILE + tl.arange(0, TILE)
    segment = entry // topk
    inside = entry < count
    full = tl.load(filled + segment, mask=inside, other=0, cache_modifier=".cg")
    valid = inside & (entry % topk < full)
    bits = tl.load(values + entry, mask=valid, other=0, cache_modifier=".cg")
    index = tl.load(indices + entry, mask=valid, other=0, cache_modifier=".cg").to(tl.int64)
    return tl.where(valid, (bits & 0x7FFF) + 1, 0), index, bits


@triton.jit
def _threshold_bin(histogram, count):  # type: ignore[no-untyped-def]
    """The highest bin such that it and the bins above have ``count`` entries, and the entries above it."""
    bins = tl.arange(0, 256)
    suffix_sum = tl.sum(histogram, 0) - tl.cumsum(histogram, 0) + histogram
    threshold = tl.max(tl.where(suffix_sum >= count, bins, 0), 0)
    return threshold, tl.sum(tl.where(bins > threshold, histogram, 0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _select(keys: tl.constexpr, source, tiles, count, out_indices, out_values, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the indices and bits of the ``count`` largest keys, in order of position; of equal keys the first."""
    upper = tl.zeros((256,), tl.int32)
    for tile in range(tiles):
        key, index, bits = keys(source, tile, TILE)
        upper += tl.histogram(key >> 8, 256)
    high, above = _threshold_bin(upper, count)
    lower = tl.zeros((512,), tl.int32)
    for tile in range(tiles):
        key, index, bits = keys(source, tile, TILE)
        lower += tl.histogram(tl.where(key >> 8 == high, key & 255, 256), 512)
    in_bin = tl.sum(tl.where(tl.arange(0, 2)[:, None] == 0, tl.reshape(lower, (2, 256)), 0), 0)  # the first half
    low, above_in_bin = _threshold_bin(in_bin, count - above)
    threshold = high * 256 + low
    ties = count - above - above_in_bin
    written = tl.zeros((), tl.int32)
    tied = tl.zeros((), tl.int32)
    for tile in range(tiles):
        key, index, bits = keys(source, tile, TILE)
        equal = (key == threshold).to(tl.int32)
        rank = tied + tl.cumsum(equal, 0) - equal
        keep = (key > threshold) | ((equal == 1) & (rank < ties))
        in_top = keep.to(tl.int32)
        target = written + tl.cumsum(in_top, 0) - in_top
        tl.store(out_indices + target, index.to(tl.int32), mask=keep)
        tl.store(out_values + target, bits.to(out_values.dtype.element_ty), mask=keep)
        written += tl.sum(in_top, 0)
        tied += tl.sum(equal, 0)


@triton.jit
def _count_selected(mask, rows):  # type: ignore[no-untyped-def]
    """How many of the first ``rows`` rows the mask selects."""
    bit = tl.arange(0, 32)
    selected = ((mask >> bit) & 1) == 1
    per_period = tl.sum(selected.to(tl.int64), 0)
    return rows // 32 * per_period + tl.sum((selected & (bit < rows % 32)).to(tl.int64), 0)


@Launcher
@triton.jit(do_not_specialize=["token_stride", "segment_count"])  # type: ignore[untyped-decorator]
def _top_kernel(  # type: ignore[no-untyped-def]
    rows,
    req_to_token,
    chunks,
    tickets,
    filled,
    out_indices,
    out_values,
    token_stride,
    segment_count,
    HIDDEN_SIZE: tl.constexpr,
    TOPK: tl.constexpr,
    OUT_BYTES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (c, s) searches segment s of chunk c, if the chunk has as many.

    ``chunks`` is ``[n, 7]`` in pinned memory: request, start, rows, mask, values, rows of a segment, segments before.
    ``tickets`` ``[n]`` counts the finished programs of each chunk; it is zero before and after. ``filled`` has the
    number of candidates of each segment, then their indices, then their bits. The outputs are one tensor in pinned
    memory, as int32 and as int16.
    """
    tiles_per_row: tl.constexpr = (HIDDEN_SIZE + TILE - 1) // TILE
    chunk_row = chunks + tl.program_id(0) * 7
    length = tl.load(chunk_row + 2)
    step = tl.load(chunk_row + 5)
    first = tl.program_id(1) * step
    candidate_indices = filled + segment_count
    candidate_values = candidate_indices + segment_count.to(tl.int64) * TOPK
    if first < length:
        mask = tl.load(chunk_row + 3)
        before = tl.load(chunk_row + 6)
        end = tl.minimum(first + step, length)
        own = before + tl.program_id(1)
        selected = _count_selected(mask, end) - _count_selected(mask, first)
        count = tl.minimum(selected * HIDDEN_SIZE, TOPK).to(tl.int32)
        if count > 0:
            slots = req_to_token + tl.load(chunk_row) * token_stride + tl.load(chunk_row + 1)
            source = (rows, slots, HIDDEN_SIZE, first, mask, tiles_per_row)
            tiles = ((end - first) * tiles_per_row).to(tl.int32)
            target = own * TOPK
            _select(_row_keys, source, tiles, count, candidate_indices + target, candidate_values + target, TILE)
        tl.store(filled + own, count)
        segments = (length + step - 1) // step
        tl.debug_barrier()  # all threads have written their candidates before this program counts itself as finished
        ticket = tl.atomic_add(tickets + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        if ticket == segments - 1:
            tl.store(tickets + tl.program_id(0), 0)
            entries = (segments * TOPK).to(tl.int32)
            begin = before * TOPK
            merged = (candidate_indices + begin, candidate_values + begin, filled + before, entries, TOPK)
            chunk = tl.program_id(0).to(tl.int64)
            indices = out_indices + chunk * (OUT_BYTES // 4)
            values = out_values + chunk * (OUT_BYTES // 2) + 2 * TOPK
            final = tl.load(chunk_row + 4).to(tl.int32)
            _select(_candidate_keys, merged, tl.cdiv(entries, TILE), final, indices, values, TILE)


def top_rows_triton(
    rows: torch.Tensor,
    req_to_token: torch.Tensor,
    chunks: Sequence[Chunk],
    topk: int,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """See `tessera_kernels.ops.rows.top_rows`. One launch and no copies."""
    table, before, longest = [], 0, 0
    for request, start, end, mask, values in chunks:
        step = max(MIN_ROWS_PER_SEGMENT, -(-(end - start) // MAX_SEGMENTS))
        segments = -(-(end - start) // step)
        table.append((request, start, end - start, mask, values, step, before))
        before, longest = before + segments, max(longest, segments)
    width = topk * (INDEX_BYTES + VALUE_BYTES)
    padded = -(-width // 8) * 8
    table_memory, out = table_and_output(table, padded, pin_memory=rows.is_cuda)
    out.numpy().fill(0)  # above 32 KiB torch would wake its threads, which takes milliseconds
    workspace = workspace or Workspace()
    workspace.reserve(len(chunks), before * (1 + 2 * topk), rows.device, stream)
    _top_kernel(
        (len(chunks), longest, 1),
        (
            rows,
            req_to_token,
            table_memory,
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
