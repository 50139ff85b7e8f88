"""The Triton kernel behind `tessera_kernels.scatter_verify.scatter_verify`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_COLUMNS = 1024
ELEMENTS_PER_PROGRAM = 2048


@triton.jit(do_not_specialize=["bs"])  # type: ignore[untyped-decorator]
def _scatter_kernel(  # type: ignore[no-untyped-def]
    packed,
    qo_indptr,
    dense,
    bs,
    columns,
    fill,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (i, c) writes dense rows ``i * ROWS ..`` in columns ``c * COLUMNS ..``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    request = row // WIDTH
    within = row % WIDTH
    live = request < bs
    begin = tl.load(qo_indptr + request, mask=live, other=0)
    end = tl.load(qo_indptr + request + 1, mask=live, other=0)
    verified = live & (within < end - begin)
    inside = (column < columns)[None, :]
    source = (begin + within).to(tl.int64)[:, None] * columns + column[None, :]
    target = row.to(tl.int64)[:, None] * columns + column[None, :]
    value = tl.load(packed + source, mask=verified[:, None] & inside, other=0)
    value = tl.where(verified[:, None], value, tl.full((ROWS, 1), fill, tl.float32).to(packed.dtype.element_ty))
    tl.store(dense + target, value, mask=live[:, None] & inside)


def scatter_verify_triton(
    packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int, dense: torch.Tensor, fill: float
) -> None:
    """See `tessera_kernels.scatter_verify.scatter_verify`. One launch."""
    columns = packed[0].numel()
    tile = min(triton.next_power_of_2(columns), MAX_COLUMNS)
    rows = ELEMENTS_PER_PROGRAM // tile
    grid = (triton.cdiv(dense.shape[0], rows), triton.cdiv(columns, tile))
    _scatter_kernel[grid](
        packed,
        qo_indptr,
        dense,
        bs,
        columns,
        float(fill),
        WIDTH=dense.shape[0] // bs,
        ROWS=rows,
        COLUMNS=tile,
    )
