"""Keep what the next step of each request begins with in the rows of a pool."""

from __future__ import annotations

from typing import NamedTuple

import torch


class DraftRows(NamedTuple):
    """What a draft begins with, a row for each request of a batch, or for each of the pool; all contiguous."""

    tokens: torch.Tensor
    """int32 or int64 ``[n]``, the last sure token; int64 in a pool."""
    probabilities: torch.Tensor
    """float32 ``[n, K]``, of the first tokens of the draft."""
    drafted: torch.Tensor
    """int64 ``[n, K]``, the first tokens of the draft."""
    states: torch.Tensor | None
    """bfloat16, float16 or float32 ``[n, H]``, the draft model's hidden states, where it takes any."""


def stash_drafts(drafts: DraftRows, requests: torch.Tensor, pool: DraftRows) -> None:
    """Write the rows of a batch to those of its requests in the pool (in place).

    One launch on a GPU, on the current stream, without a host sync; `stash_drafts_torch` elsewhere.

    Args:
        drafts: of the batch.
        requests: int64 ``[bs]``, contiguous, each request's row in the pool, none twice. Rows that the pool does not
            have are left out.
        pool: has states if the batch has; same dtypes but for the tokens'.
    """
    if requests.is_cuda:
        from tessera_kernels.triton.draft.stash_drafts import stash_drafts_triton

        stash_drafts_triton(drafts, requests, pool)
    else:
        stash_drafts_torch(drafts, requests, pool)


def stash_drafts_torch(drafts: DraftRows, requests: torch.Tensor, pool: DraftRows) -> None:
    """The torch twin of the Triton kernel: same arguments, same result."""
    inside = (requests >= 0) & (requests < len(pool.tokens))
    for rows, kept in zip(drafts, pool, strict=True):
        if rows is not None and kept is not None:
            kept[requests[inside]] = rows[inside].to(kept.dtype)
