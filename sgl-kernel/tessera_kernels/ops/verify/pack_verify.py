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

    @classmethod
    def around(cls, tokens: torch.Tensor, positions: torch.Tensor) -> VerifyRows:
        """With room for the slots of as many rows."""
        return cls(tokens, positions, torch.empty_like(positions))


class KVSlots(NamedTuple):
    """Where the KV slots of a batch are, by SGLang's names."""

    req_to_token: torch.Tensor
    """int32 ``[rows of the pool, positions]``, contiguous: the KV slot of each position of each request."""
    requests: torch.Tensor
    """``[bs]`` int32 or int64: each request's row of the pool."""
    seq_lens: torch.Tensor
    """``[bs]`` int32 or int64: its tokens in the cache; its dense rows have the slots that follow."""


def pack_verify(dense: VerifyRows, slots: KVSlots, qo_indptr: torch.Tensor, packed: VerifyRows) -> None:
    """Look up the slots of all rows, copy the first ones of each request next to each other, and pad with zeros.

    Writes ``dense.locations`` and all of ``packed``, in place. Token 0 at position 0 into slot 0, SGLang's padding
    slot, is what a padding row writes.

    One launch on a GPU, on the current stream, without a host sync; `pack_verify_torch` elsewhere.

    Args:
        dense: ``[bs * N]`` each, contiguous.
        slots: of the batch.
        qo_indptr: int32 ``[bs + 1]`` or longer, where each request begins in the packed rows; the first
            ``qo_indptr[bs]`` rows are real, at most those of ``packed``.
        packed: ``[rows]`` each, contiguous. ``rows`` is the size of the graph.
    """
    if qo_indptr.is_cuda:
        from tessera_kernels.triton.verify.pack_verify import pack_verify_triton

        pack_verify_triton(dense, slots, qo_indptr, packed)
    else:
        pack_verify_torch(dense, slots, qo_indptr, packed)


def pack_verify_torch(dense: VerifyRows, slots: KVSlots, qo_indptr: torch.Tensor, packed: VerifyRows) -> None:
    """The torch twin of the Triton kernel: same arguments, same result."""
    bs = slots.requests.shape[0]
    within = torch.arange(dense.tokens.shape[0] // bs, device=qo_indptr.device)
    positions = slots.seq_lens.long().unsqueeze(1) + within
    dense.locations.copy_(slots.req_to_token[slots.requests.long().unsqueeze(1), positions].flatten())
    real = (within < qo_indptr[: bs + 1].diff().unsqueeze(1)).flatten()
    for target, values in zip(packed, dense, strict=True):
        verified = values[real]
        target[: len(verified)] = verified
        target[len(verified) :] = 0
