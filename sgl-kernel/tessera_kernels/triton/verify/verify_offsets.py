"""The Triton kernel of `tessera_kernels.ops.verify.verify_offsets`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.verify.verify_offsets import VerifyOffsets
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

_MIN_BLOCK = 256
"""Requests. Smaller blocks would need more compilations and are no faster."""


@Launcher
@triton.jit(do_not_specialize=["bs", "width"])  # type: ignore[untyped-decorator]
def _verify_kernel(  # type: ignore[no-untyped-def]
    seq_lens,
    verify_lens,
    kv_lens,
    qo_indptr,
    kv_indptr,
    bs,
    width,
    RAGGED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for all requests."""
    request = tl.arange(0, BLOCK)
    inside = request < bs
    cached = tl.load(seq_lens + request, mask=inside, other=0).to(tl.int32)
    if RAGGED:
        verified = tl.load(verify_lens + request, mask=inside, other=0)
        tl.store(qo_indptr, 0)
        tl.store(qo_indptr + 1 + request, tl.cumsum(verified, 0), mask=inside)
    else:
        verified = tl.where(inside, width, 0)
    total = cached + verified
    tl.store(kv_lens + request, total, mask=inside)
    tl.store(kv_indptr, 0)
    tl.store(kv_indptr + 1 + request, tl.cumsum(total, 0), mask=inside)


def verify_offsets_triton(
    seq_lens: torch.Tensor, verify_lens: torch.Tensor | None, width: int, offsets: VerifyOffsets
) -> None:
    """See `tessera_kernels.ops.verify.verify_offsets`. One launch."""
    bs = seq_lens.shape[0]
    _verify_kernel(
        (1, 1, 1),
        (seq_lens, offsets.kv_lens if verify_lens is None else verify_lens, *offsets),  # None is not read
        (bs, width),
        (verify_lens is not None, max(power_of_2(bs), _MIN_BLOCK)),
    )
