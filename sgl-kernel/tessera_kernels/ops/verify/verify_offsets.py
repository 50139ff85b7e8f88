"""Where each request's queries and keys begin and end in a verification, in one launch."""

from __future__ import annotations

from typing import NamedTuple

import torch


class VerifyOffsets(NamedTuple):
    """What is written, all int32: the buffers of a captured graph for ``bs`` requests."""

    kv_lens: torch.Tensor
    """``[bs]``: cached tokens and those that are verified."""
    qo_indptr: torch.Tensor
    """``[bs + 1]``: where the tokens begin that are verified; as it was where all have as many."""
    kv_indptr: torch.Tensor
    """``[bs + 1]``: where all tokens begin."""


def verify_offsets(
    seq_lens: torch.Tensor, verify_lens: torch.Tensor | None, width: int, offsets: VerifyOffsets
) -> None:
    """Fill the offsets (in place), on the current stream.

    One program of a Triton kernel on a GPU, `verify_offsets_torch` elsewhere.

    Args:
        seq_lens: int64 ``[bs]``, contiguous: cached tokens of each request, below 2^31 in all.
        verify_lens: int32 ``[bs]``, contiguous: tokens of each that are verified. None is ``width`` of each.
        width: the most of one request.
        offsets: written.
    """
    if seq_lens.is_cuda:
        from tessera_kernels.triton.verify.verify_offsets import verify_offsets_triton

        verify_offsets_triton(seq_lens, verify_lens, width, offsets)
    else:
        verify_offsets_torch(seq_lens, verify_lens, width, offsets)


def verify_offsets_torch(
    seq_lens: torch.Tensor, verify_lens: torch.Tensor | None, width: int, offsets: VerifyOffsets
) -> None:
    """The torch twin of the Triton kernel: same arguments, same result."""
    offsets.kv_lens.copy_(seq_lens + (width if verify_lens is None else verify_lens))
    ends = [(offsets.kv_indptr, offsets.kv_lens)]
    if verify_lens is not None:
        ends.append((offsets.qo_indptr, verify_lens))
    for indptr, lens in ends:
        indptr[0] = 0
        indptr[1:] = lens.cumsum(0)
