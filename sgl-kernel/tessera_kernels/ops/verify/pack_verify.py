"""Pack the verified rows of padded rows ``[bs, N]``, request by request."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tessera_kernels.registry import op


class VerifyRows(NamedTuple):
    """Inputs of the target's forward for each row; all of one length."""

    tokens: torch.Tensor
    """int64, token id."""
    positions: torch.Tensor
    """int64, position in the sequence."""
    locations: torch.Tensor
    """int64, KV slot to write."""

    @classmethod
    def with_new_locations(cls, tokens: torch.Tensor, positions: torch.Tensor) -> VerifyRows:
        """Rows with uninitialized locations."""
        return cls(tokens, positions, torch.empty_like(positions))


class KVSlots(NamedTuple):
    """The KV slots of a batch, under SGLang's names."""

    req_to_token: torch.Tensor
    """int32 ``[rows of the pool, positions]``, contiguous: the KV slot of each position of each request."""
    requests: torch.Tensor
    """``[bs]`` int32 or int64: each request's row of the pool."""
    seq_lens: torch.Tensor
    """``[bs]`` int32 or int64: its cached tokens; its padded rows have the slots at the positions that follow."""


@op
def pack_verify(padded: VerifyRows, slots: KVSlots, qo_indptr: torch.Tensor, packed: VerifyRows) -> None:
    """Look up the KV slots of all padded rows, pack the first rows of each request, and set the rest to zero.

    Writes ``padded.locations`` and all of ``packed``, in place. A padding row is token 0 at position 0 in slot 0, which
    is SGLang's padding slot.

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel.

    Args:
        padded: ``[bs * N]`` each, contiguous.
        slots: of the batch.
        qo_indptr: int32 ``[bs + 1]`` or longer, where each request begins in the packed rows. Rows from
            ``qo_indptr[bs]`` on are padding.
        packed: ``[rows]`` each, contiguous, written. ``rows`` is the size of the graph, at least ``qo_indptr[bs]``.
    """
    bs = slots.requests.shape[0]
    within = torch.arange(padded.tokens.shape[0] // bs, device=qo_indptr.device)
    positions = slots.seq_lens.long().unsqueeze(1) + within
    padded.locations.copy_(slots.req_to_token[slots.requests.long().unsqueeze(1), positions].flatten())
    real = (within < qo_indptr[: bs + 1].diff().unsqueeze(1)).flatten()
    for target, values in zip(packed, padded, strict=True):
        verified = values[real]
        target[: len(verified)] = verified
        target[len(verified) :] = 0
