"""Offsets of a draft-extend, in which the draft model reads the verified tokens: queries and KV slots by request."""

from typing import NamedTuple

import torch

from tessera_kernels.registry import op


class ExtendOffsets(NamedTuple):
    """Inputs of SGLang's Triton attention in a draft-extend; all contiguous, written in place."""

    qo_indptr: torch.Tensor
    """int64 ``[bs + 1]``, the first row of each request."""
    kv_indptr: torch.Tensor
    """int32 ``[bs + 1]``, the first of each request's entries in ``kv_indices``."""
    kv_indices: torch.Tensor
    """int64 ``[capacity]``, the KV slots of all contexts, by request; entries beyond the capacity are dropped."""


@op
def extend_offsets(
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    accept_lens: torch.Tensor | None,
    requests: torch.Tensor,
    req_to_token: torch.Tensor,
    width: int,
    offsets: ExtendOffsets,
) -> None:
    """Fill the offsets of a batch in which each request has ``width`` rows.

    A request's context is the tokens before those that the draft model reads, ``seq_lens - extend_lens``, or none
    where that is negative (padding). With ``accept_lens`` the context includes the accepted tokens among those that the
    model reads.

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel.

    Args:
        seq_lens: int32 or int64 ``[bs]``, contiguous, tokens of each request.
        extend_lens: int32 or int64 ``[bs]``, contiguous, how many of them the draft model reads now.
        accept_lens: int32 or int64 ``[bs]``, contiguous, or None.
        requests: int32 or int64 ``[bs]``, contiguous, each request's row of the table.
        req_to_token: int32 ``[rows of the pool, positions]``, rows contiguous: the KV slot of each position.
        width: rows of each request.
        offsets: what to fill.
    """
    lens = (seq_lens - extend_lens).clamp(min=0) + (0 if accept_lens is None else accept_lens)
    offsets.qo_indptr.copy_(torch.arange(len(lens) + 1, device=lens.device) * width)
    offsets.kv_indptr[:1] = 0
    offsets.kv_indptr[1:] = lens.cumsum(0)
    within = torch.arange(req_to_token.shape[1], device=lens.device) < lens.unsqueeze(1)
    slots = req_to_token[requests][within][: len(offsets.kv_indices)]
    offsets.kv_indices[: len(slots)] = slots
