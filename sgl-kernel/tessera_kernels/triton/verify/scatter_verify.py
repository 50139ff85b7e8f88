"""The Triton kernel of `tessera_kernels.ops.verify.scatter_verify`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.triton.device.launcher import Launcher, power_of_2

MAX_COLUMNS = 1024
ELEMENTS_PER_PROGRAM = 2048


@Launcher
@triton.jit(do_not_specialize=["bs", "fill"])  # type: ignore[untyped-decorator]
def _scatter_kernel(  # type: ignore[no-untyped-def]
    packed,
    qo_indptr,
    padded,
    bs,
    fill,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (i, c) writes padded rows ``i * ROWS ..`` in columns ``c * TILE ..``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    request = row // WIDTH
    within = row % WIDTH
    live = request < bs
    begin = tl.load(qo_indptr + request, mask=live, other=0)
    end = tl.load(qo_indptr + request + 1, mask=live, other=0)
    verified = live & (within < end - begin)
    inside = (column < COLUMNS)[None, :]
    source = (begin + within).to(tl.int64)[:, None] * COLUMNS + column[None, :]
    target = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    value = tl.load(packed + source, mask=verified[:, None] & inside, other=0)
    value = tl.where(verified[:, None], value, tl.full((ROWS, 1), fill, tl.float32).to(packed.dtype.element_ty))
    tl.store(padded + target, value, mask=live[:, None] & inside)


def scatter_verify_triton(
    packed: torch.Tensor, qo_indptr: torch.Tensor, bs: int, padded: torch.Tensor, fill: float
) -> None:
    """See `tessera_kernels.ops.verify.scatter_verify`. One launch."""
    columns = packed.shape[1:].numel()
    tile = min(power_of_2(columns), MAX_COLUMNS)
    rows = ELEMENTS_PER_PROGRAM // tile
    _scatter_kernel(
        (-(-padded.shape[0] // rows), -(-columns // tile), 1),
        (packed, qo_indptr, padded),
        (bs, float(fill)),
        (padded.shape[0] // bs, rows, columns, tile),
    )
