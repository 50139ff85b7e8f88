"""The Triton kernel of `tessera_kernels.ops.verify.pack_verify`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows
from tessera_kernels.triton.device.launcher import Launcher

ROWS_PER_PROGRAM = 128


@Launcher
@triton.jit(do_not_specialize=["bs", "rows"])  # type: ignore[untyped-decorator]
def _pack_kernel(  # type: ignore[no-untyped-def]
    tokens,
    positions,
    locations,
    req_to_token,
    requests,
    seq_lens,
    qo_indptr,
    packed_tokens,
    packed_positions,
    packed_locations,
    bs,
    rows,
    WIDTH: tl.constexpr,
    LONGEST: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program i packs padded rows ``i * ROWS ..``, and clears padding among packed rows ``i * ROWS ..``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    request, within = row // WIDTH, row % WIDTH
    live = request < bs
    position = tl.load(seq_lens + request, mask=live, other=0) + within
    pool = tl.load(requests + request, mask=live, other=0).to(tl.int64)
    location = tl.load(req_to_token + pool * LONGEST + position, mask=live, other=0).to(tl.int64)
    tl.store(locations + row, location, mask=live)
    begin = tl.load(qo_indptr + request, mask=live, other=0)
    end = tl.load(qo_indptr + request + 1, mask=live, other=0)
    target = begin + within
    verified = live & (target < end)
    tl.store(packed_tokens + target, tl.load(tokens + row, mask=verified, other=0), mask=verified)
    tl.store(packed_positions + target, tl.load(positions + row, mask=verified, other=0), mask=verified)
    tl.store(packed_locations + target, location, mask=verified)
    padding = (row >= tl.load(qo_indptr + bs)) & (row < rows)
    zero = tl.zeros((ROWS,), tl.int64)
    tl.store(packed_tokens + row, zero, mask=padding)
    tl.store(packed_positions + row, zero, mask=padding)
    tl.store(packed_locations + row, zero, mask=padding)


def pack_verify_triton(padded: VerifyRows, slots: KVSlots, qo_indptr: torch.Tensor, packed: VerifyRows) -> None:
    """See `tessera_kernels.ops.verify.pack_verify`. One launch."""
    bs, rows, padded_rows = slots.requests.shape[0], packed.tokens.shape[0], padded.tokens.shape[0]
    _pack_kernel(
        (-(-max(rows, padded_rows) // ROWS_PER_PROGRAM), 1, 1),
        (*padded, *slots, qo_indptr, *packed),
        (bs, rows),
        (padded_rows // bs, slots.req_to_token.shape[1], ROWS_PER_PROGRAM),
    )
