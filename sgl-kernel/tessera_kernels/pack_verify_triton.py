"""The Triton kernel behind `tessera_kernels.pack_verify.pack_verify`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.launch import Launcher
from tessera_kernels.pack_verify import VerifyRows

ROWS_PER_PROGRAM = 128


@Launcher
@triton.jit(do_not_specialize=["bs", "rows"])  # type: ignore[untyped-decorator]
def _pack_kernel(  # type: ignore[no-untyped-def]
    tokens,
    positions,
    locations,
    qo_indptr,
    packed_tokens,
    packed_positions,
    packed_locations,
    bs,
    rows,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Program i packs rows ``i * ROWS ..``; ``2 ** LEVELS`` is more than bs."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # The last request that begins at or before the row: every request has a row, so no two begin at one.
    request = tl.zeros((ROWS,), tl.int32)
    for level in tl.static_range(LEVELS):
        further = request + (1 << (LEVELS - 1 - level))
        begin = tl.load(qo_indptr + further, mask=further < bs, other=2147483647)
        request = tl.where(begin <= row, further, request)
    real = row < tl.load(qo_indptr + bs)
    source = request * WIDTH + row - tl.load(qo_indptr + request)
    inside = row < rows
    tl.store(packed_tokens + row, tl.load(tokens + source, mask=real, other=0), mask=inside)
    tl.store(packed_positions + row, tl.load(positions + source, mask=real, other=0), mask=inside)
    tl.store(packed_locations + row, tl.load(locations + source, mask=real, other=0), mask=inside)


def pack_verify_triton(dense: VerifyRows, qo_indptr: torch.Tensor, bs: int, packed: VerifyRows) -> None:
    """See `tessera_kernels.pack_verify.pack_verify`. One launch."""
    rows = packed.tokens.shape[0]
    levels = qo_indptr.shape[0].bit_length()  # not of bs: each value is compiled once
    _pack_kernel(
        (-(-rows // ROWS_PER_PROGRAM), 1, 1),
        (*dense, qo_indptr, *packed),
        (bs, rows),
        (dense.tokens.shape[0] // bs, ROWS_PER_PROGRAM, levels),
    )
