"""Offsets of each request's queries and keys in the attention of a verification."""

from typing import NamedTuple

import torch

from tessera_kernels.registry import op


class VerifyOffsets(NamedTuple):
    """Outputs of `verify_offsets`, all int32: the buffers of a captured graph for ``bs`` requests."""

    kv_lens: torch.Tensor
    """``[bs]``: cached and verified tokens."""
    qo_indptr: torch.Tensor
    """``[bs + 1]``: offsets of the verified tokens; written only if ``verify_lens`` is given."""
    kv_indptr: torch.Tensor
    """``[bs + 1]``: offsets of all tokens."""


@op
def verify_offsets(
    seq_lens: torch.Tensor, verify_lens: torch.Tensor | None, width: int, offsets: VerifyOffsets
) -> None:
    """Fill the offsets (in place).

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel.

    Args:
        seq_lens: int64 ``[bs]``, contiguous: cached tokens of each request, below 2^31 in all.
        verify_lens: int32 ``[bs]``, contiguous: verified tokens of each request; None for ``width`` each.
        width: the most verified tokens of a request.
        offsets: written.
    """
    offsets.kv_lens.copy_(seq_lens + (width if verify_lens is None else verify_lens))
    ends = [(offsets.kv_indptr, offsets.kv_lens)]
    if verify_lens is not None:
        ends.append((offsets.qo_indptr, verify_lens))
    for indptr, lens in ends:
        indptr[0] = 0
        indptr[1:] = lens.cumsum(0)
