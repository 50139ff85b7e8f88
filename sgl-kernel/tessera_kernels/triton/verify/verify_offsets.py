"""The Triton kernel behind `tessera_kernels.ops.verify.verify_offsets.verify_offsets`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.verify.verify_offsets import VerifyOffsets
from tessera_kernels.triton.device.launch import Launcher, power_of_2

_LEAST = 256
"""Requests that one compilation is for at least: for few, a smaller one is no faster."""


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
    """The only program adds up all requests."""
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
    """See `tessera_kernels.ops.verify.verify_offsets.verify_offsets`. One launch."""
    bs = seq_lens.shape[0]
    _verify_kernel(
        (1, 1, 1),
        (seq_lens, offsets.kv_lens if verify_lens is None else verify_lens, *offsets),  # what is None is not read
        (bs, width),
        (verify_lens is not None, max(power_of_2(bs), _LEAST)),
    )
