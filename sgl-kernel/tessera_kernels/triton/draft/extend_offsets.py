"""The Triton kernel of `tessera_kernels.ops.draft.extend_offsets`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.draft.extend_offsets import ExtendOffsets
from tessera_kernels.triton.device.launcher import Launcher

ROWS = 512
"""Requests whose context lengths a program sums at once."""
COLUMNS = 1024
"""KV slots that a program copies at once."""
PROGRAMS = 256
"""Programs of a launch, at least one for each request. The host does not know the lengths, and one may be long."""
_INT32_MAX = 2**31 - 1
_NUMBERS = ["bs", "width", "stride", "capacity"]


@triton.jit  # type: ignore[untyped-decorator]
def _context(seq_lens, extend_lens, accept_lens, request, live, ACCEPTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Context lengths, int32; with the accepted tokens if ACCEPTED; 0 for requests that are not live."""
    tokens = tl.load(seq_lens + request, mask=live, other=0).to(tl.int32)
    tokens = tl.maximum(tokens - tl.load(extend_lens + request, mask=live, other=0).to(tl.int32), 0)
    if ACCEPTED:
        tokens += tl.load(accept_lens + request, mask=live, other=0).to(tl.int32)
    return tokens


@Launcher
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _extend_kernel(  # type: ignore[no-untyped-def]
    seq_lens,
    extend_lens,
    accept_lens,
    requests,
    req_to_token,
    qo_indptr,
    kv_indptr,
    kv_indices,
    bs,
    width,
    stride,
    capacity,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACCEPTED: tl.constexpr,
):
    """Program (b, c) copies blocks c, c + programs, ... of the slots of request b; with c = 0 it writes offsets too.

    Each program sums the context lengths before its own request's, which is faster than another launch.
    """
    own, block = tl.program_id(0), tl.program_id(1)
    before = tl.zeros((ROWS,), tl.int32)
    for first in range(0, own, ROWS):
        row = first + tl.arange(0, ROWS)
        before += _context(seq_lens, extend_lens, accept_lens, row, row < own, ACCEPTED)
    begin = tl.sum(before, 0)
    length = _context(seq_lens, extend_lens, accept_lens, own, own < bs, ACCEPTED)
    if block == 0:
        tl.store(qo_indptr + own, own * width)
        tl.store(kv_indptr + own, begin)
        if own == bs - 1:
            tl.store(qo_indptr + bs, bs * width)
            tl.store(kv_indptr + bs, begin + length)
    slots = req_to_token + tl.load(requests + own).to(tl.int64) * stride
    for first in range(block * COLUMNS, length, tl.num_programs(1) * COLUMNS):
        position = first + tl.arange(0, COLUMNS)
        target = begin.to(tl.int64) + position
        inside = (position < length) & (target < capacity)
        tl.store(kv_indices + target, tl.load(slots + position, mask=inside).to(tl.int64), mask=inside)


def extend_offsets_triton(
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    accept_lens: torch.Tensor | None,
    requests: torch.Tensor,
    req_to_token: torch.Tensor,
    width: int,
    offsets: ExtendOffsets,
    programs: int = PROGRAMS,
) -> None:
    """See `tessera_kernels.ops.draft.extend_offsets`. One launch."""
    bs = seq_lens.shape[0]
    _extend_kernel(
        (bs, max(programs // bs, 1), 1),
        (seq_lens, extend_lens, extend_lens if accept_lens is None else accept_lens, requests, req_to_token, *offsets),
        (bs, width, req_to_token.stride(0), min(offsets.kv_indices.shape[0], _INT32_MAX)),
        (ROWS, COLUMNS, accept_lens is not None),
    )
