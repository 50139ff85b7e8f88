"""Store the draft state of each request in its row of a pool, for its next step."""

from typing import NamedTuple

import torch

from tessera_kernels.registry import op


class DraftRows(NamedTuple):
    """The inputs of a draft, one row for each request of a batch or of the pool; all contiguous."""

    tokens: torch.Tensor
    """int32 or int64 ``[n]``, the last accepted token; int64 in a pool."""
    probabilities: torch.Tensor
    """float32 ``[n, K]``, the draft model's probabilities of the first draft tokens."""
    drafted: torch.Tensor
    """int64 ``[n, K]``, the first draft tokens."""
    states: torch.Tensor | None
    """bfloat16, float16 or float32 ``[n, H]``, the hidden states that the draft model takes; None if it takes none."""


@op
def stash_drafts(drafts: DraftRows, requests: torch.Tensor, pool: DraftRows) -> None:
    """Copy the rows of a batch to its requests' rows of the pool (in place).

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel.

    Args:
        drafts: of the batch.
        requests: int64 ``[bs]``, contiguous, each request's row of the pool, all different. Rows outside of the pool
            are skipped.
        pool: written. With states if the batch has them; same dtypes except of the tokens.
    """
    inside = (requests >= 0) & (requests < len(pool.tokens))
    for rows, kept in zip(drafts, pool, strict=True):
        if rows is not None and kept is not None:
            kept[requests[inside]] = rows[inside].to(kept.dtype)
