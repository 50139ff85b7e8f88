"""The Triton kernel behind `tessera_kernels.ops.draft.extend_offsets.extend_offsets`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.draft.extend_offsets import ExtendOffsets
from tessera_kernels.triton.device.launch import Launcher

ROWS = 512
"""Requests whose contexts are added up at once."""
COLUMNS = 1024
"""KV slots that are copied at once."""
PROGRAMS = 256
"""So many share the contexts of a batch, or one has each: the host knows no lengths, and one may be long."""
_MOST = 2**31 - 1
_NUMBERS = ["bs", "width", "stride", "capacity"]


@triton.jit  # type: ignore[untyped-decorator]
def _context(seq_lens, extend_lens, accept_lens, request, live, ACCEPTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tokens before those that are read now, and accepted ones if wanted, int32; of requests that are not live none."""
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
    """Program (b, c) copies every so many blocks of the slots of request b, from block c on; with c = 0 also offsets.

    Each adds up the contexts before its own: they are fewer bytes than another launch takes time for.
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
        place = begin.to(tl.int64) + position
        inside = (position < length) & (place < capacity)
        tl.store(kv_indices + place, tl.load(slots + position, mask=inside).to(tl.int64), mask=inside)


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
    """See `tessera_kernels.ops.draft.extend_offsets.extend_offsets`. One launch."""
    bs = seq_lens.shape[0]
    _extend_kernel(
        (bs, max(programs // bs, 1), 1),
        (seq_lens, extend_lens, extend_lens if accept_lens is None else accept_lens, requests, req_to_token, *offsets),
        (bs, width, req_to_token.stride(0), min(offsets.kv_indices.shape[0], _MOST)),
        (ROWS, COLUMNS, accept_lens is not None),
    )
