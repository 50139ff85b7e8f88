"""The Triton kernel behind `tessera_kernels.pool_rows.pool_rows`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tessera_kernels.pool_rows import Span

ROWS_PER_TILE = 32
COLUMNS_PER_TILE = 128


@triton.jit
def _nan_max(a, b):  # type: ignore[no-untyped-def]
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit  # type: ignore[untyped-decorator]
def _pool_kernel(  # type: ignore[no-untyped-def]
    rows,
    req_to_token,
    spans,
    out,
    hidden_size,
    token_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (i, c) pools columns ``c*COLUMNS ..`` of span i; ``spans`` is ``[n, 4]``: request, start, end, op."""
    span = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < hidden_size
    request = tl.load(spans + span * 4)
    start = tl.load(spans + span * 4 + 1)
    end = tl.load(spans + span * 4 + 2)
    is_max = tl.load(spans + span * 4 + 3) == 1
    slots_of_request = req_to_token + request * token_stride
    if is_max:
        best = tl.full((ROWS, COLUMNS), float("-inf"), tl.float32)
        for first in range(start, end, ROWS):
            position = first + tl.arange(0, ROWS)
            slot = tl.load(slots_of_request + position, mask=position < end, other=0).to(tl.int64)
            mask = (position < end)[:, None] & inside[None, :]
            tile = tl.load(rows + slot[:, None] * hidden_size + columns[None, :], mask=mask, other=float("-inf"))
            best = _nan_max(best, tile.to(tl.float32))
        pooled = tl.reduce(best, 0, _nan_max)
    else:
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(start, end, ROWS):
            position = first + tl.arange(0, ROWS)
            slot = tl.load(slots_of_request + position, mask=position < end, other=0).to(tl.int64)
            mask = (position < end)[:, None] & inside[None, :]
            tile = tl.load(rows + slot[:, None] * hidden_size + columns[None, :], mask=mask, other=0.0)
            total += tile.to(tl.float32)
        pooled = tl.sum(total, 0) / (end - start).to(tl.float32)
    tl.store(out + span.to(tl.int64) * hidden_size + columns, pooled, mask=inside)


def pool_rows_triton(rows: torch.Tensor, req_to_token: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """See `tessera_kernels.pool_rows.pool_rows`. One host-to-device copy of 32 bytes a span, one launch."""
    table = torch.tensor(spans, dtype=torch.int64, pin_memory=rows.is_cuda).to(rows.device, non_blocking=True)
    hidden_size = rows.shape[1]
    out = torch.empty((len(spans), hidden_size), dtype=torch.float32, device=rows.device)
    grid = (len(spans), triton.cdiv(hidden_size, COLUMNS_PER_TILE))
    _pool_kernel[grid](
        rows,
        req_to_token,
        table,
        out,
        hidden_size,
        req_to_token.stride(0),
        ROWS=ROWS_PER_TILE,
        COLUMNS=COLUMNS_PER_TILE,
    )
    return out
