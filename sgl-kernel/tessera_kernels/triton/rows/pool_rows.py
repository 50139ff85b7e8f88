"""The Triton kernel of `tessera_kernels.ops.rows.pool_rows`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.rows.pool_rows import Span
from tessera_kernels.triton.device.launcher import Launcher
from tessera_kernels.triton.device.pinned_memory import table_and_output


class Tile(NamedTuple):
    """What a program reads at once: rows and columns; and its warps."""

    rows: int
    columns: int
    warps: int


TILE = Tile(64, 64, 4)
"""8 KiB in bfloat16, 128 bytes of each row. The compiled kernel has 72 registers, so 7 programs fit on a multiprocessor
of an H200: 7 MB in flight, more than bandwidth times latency. 64 spans of 4,096 columns fill the GPU four times, which
keeps the tail short; one span has 64 programs."""


@triton.jit
def _nan_max(a, b):  # type: ignore[no-untyped-def]
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@Launcher
@triton.jit(do_not_specialize=["token_stride"])  # type: ignore[untyped-decorator]
def _pool_kernel(  # type: ignore[no-untyped-def]
    rows,
    req_to_token,
    spans,
    out,
    token_stride,
    HIDDEN_SIZE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (c, i) pools columns ``c * COLUMNS ..`` of span i; ``spans`` is ``[n, 4]``: request, start, end, reduce.

    Neighbouring programs read neighbouring columns of the same rows. Slots are loaded one tile ahead: otherwise each
    load of rows would wait for its slots, and memory would be idle half of the time.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    span = tl.program_id(1)
    inside = columns < HIDDEN_SIZE
    request = tl.load(spans + span * 4)
    start = tl.load(spans + span * 4 + 1)
    end = tl.load(spans + span * 4 + 2)
    is_max = tl.load(spans + span * 4 + 3) == 1
    slots_of_request = req_to_token + request * token_stride
    position = start + tl.arange(0, ROWS)
    slot = tl.load(slots_of_request + position, mask=position < end, other=0)
    if is_max:
        best = tl.full((ROWS, COLUMNS), float("-inf"), tl.float32)
        for _first in range(start, end, ROWS):
            later = position + ROWS
            next_slot = tl.load(slots_of_request + later, mask=later < end, other=0)
            mask = (position < end)[:, None] & inside[None, :]
            row = rows + slot.to(tl.int64)[:, None] * HIDDEN_SIZE
            tile = tl.load(row + columns[None, :], mask=mask, other=float("-inf"))
            best = _nan_max(best, tile.to(tl.float32))
            position, slot = later, next_slot
        pooled = tl.reduce(best, 0, _nan_max)
    else:
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for _first in range(start, end, ROWS):
            later = position + ROWS
            next_slot = tl.load(slots_of_request + later, mask=later < end, other=0)
            mask = (position < end)[:, None] & inside[None, :]
            row = rows + slot.to(tl.int64)[:, None] * HIDDEN_SIZE
            tile = tl.load(row + columns[None, :], mask=mask, other=0.0)
            total += tile.to(tl.float32)
            position, slot = later, next_slot
        pooled = tl.sum(total, 0) / (end - start).to(tl.float32)
    tl.store(out + span.to(tl.int64) * OUT_STRIDE + columns, pooled, mask=inside)


def pool_rows_triton(
    rows: torch.Tensor,
    req_to_token: torch.Tensor,
    spans: Sequence[Span],
    stream: torch.cuda.Stream | None = None,
    tile: Tile = TILE,
) -> torch.Tensor:
    """See `tessera_kernels.ops.rows.pool_rows`. One launch and no copies."""
    hidden_size = rows.shape[1]
    table, memory = table_and_output(spans, -(-hidden_size // 2) * 8, pin_memory=rows.is_cuda)
    out = memory.view(torch.float32)
    _pool_kernel(
        (-(-hidden_size // tile.columns), len(spans), 1),
        (rows, req_to_token, table, out),
        (req_to_token.stride(0),),
        (hidden_size, out.stride(0), tile.rows, tile.columns),
        num_warps=tile.warps,
        stream=stream,
    )
    return out[:, :hidden_size]
