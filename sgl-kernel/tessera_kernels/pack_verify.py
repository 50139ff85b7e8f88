"""From dense rows ``[bs, N]`` to the rows that are verified, one request behind the other."""

from __future__ import annotations

from typing import NamedTuple

import torch


class VerifyRows(NamedTuple):
    """What the target's forward takes for each row; all of one length."""

    tokens: torch.Tensor
    """int64."""
    positions: torch.Tensor
    """int64, position in the sequence."""
    locations: torch.Tensor
    """int64, KV slot to write."""


def pack_verify(dense: VerifyRows, qo_indptr: torch.Tensor, bs: int, packed: VerifyRows) -> None:
    """Copy the first ``verify_lens[b]`` rows of each request next to each other (in place), and pad with zeros.

    Token 0 at position 0 into slot 0, SGLang's padding slot, is what a padding row writes.

    One launch on a GPU, on the current stream, without a host sync; `pack_verify_torch` elsewhere.

    Args:
        dense: ``[bs * N]`` each, contiguous.
        qo_indptr: int32 ``[bs + 1]`` or longer, where each request begins in the packed rows; the first
            ``qo_indptr[bs]`` rows are real, at most those of ``packed``.
        bs: requests.
        packed: ``[rows]`` each, contiguous, written everywhere. ``rows`` is the size of the graph.
    """
    if qo_indptr.is_cuda:
        from tessera_kernels.pack_verify_triton import pack_verify_triton

        pack_verify_triton(dense, qo_indptr, bs, packed)
    else:
        pack_verify_torch(dense, qo_indptr, bs, packed)


def pack_verify_torch(dense: VerifyRows, qo_indptr: torch.Tensor, bs: int, packed: VerifyRows) -> None:
    """The torch twin of the Triton kernel: same arguments, same result."""
    width = dense.tokens.shape[0] // bs
    row = torch.arange(packed.tokens.shape[0], device=qo_indptr.device)
    request = torch.searchsorted(qo_indptr[1 : bs + 1], row, right=True).clamp(max=bs - 1)
    source = request * width + row - qo_indptr[request]
    real = row < qo_indptr[bs]
    for target, values in zip(packed, dense, strict=True):
        target.copy_(torch.where(real, values[source.where(real, 0)], 0))
