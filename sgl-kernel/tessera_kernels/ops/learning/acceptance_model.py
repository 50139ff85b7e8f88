"""The acceptance model: a table of logits by depth and confidence, and an offset for each request.

The probability that the draft token at a depth is accepted, given that those before it were, is
``sigmoid(logits[depth, bin(confidence)] + offsets[request])``. `tessera.tilespec.calibration` fits the table.

For trees the table has one row. It is looked up by a node's path score, the product of the confidences from the root to
the node, and gives the probability that the whole path is accepted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class AcceptanceModel(NamedTuple):
    """Device tensors. ``S``: the greatest depth, 1 for trees; ``BINS``: a power of two; ``R``: rows of the pool."""

    edges: torch.Tensor
    """float32 ``[BINS - 1]``, ascending: bin i holds ``edges[i-1] <= confidence < edges[i]``."""
    logits: torch.Tensor
    """float32 ``[S, BINS]``, finite."""
    offsets: torch.Tensor
    """float32 ``[R]``, finite, added to the logit of every depth; 0 for a new request."""
    counts: torch.Tensor
    """int32 ``[3, S, BINS]``: trials, successes, and accepted tokens predicted (sums of the survivals of all verified
    tokens, in `PREDICTION_UNIT`). They only grow, and wrap, so they may be read at any time."""

    @classmethod
    def create(cls, edges: torch.Tensor, logits: torch.Tensor, requests: int, device: str) -> AcceptanceModel:
        """A model on ``device`` with zero offsets and counts."""
        return cls(
            edges.to(device, torch.float32).contiguous(),
            logits.to(device, torch.float32).contiguous(),
            torch.zeros(requests, dtype=torch.float32, device=device),
            torch.zeros((3, *logits.shape), dtype=torch.int32, device=device),
        )

    def with_own_table(self) -> AcceptanceModel:
        """A model with a copy of the table and its own counts, zero; it shares the requests' offsets."""
        return self._replace(logits=self.logits.clone(), counts=torch.zeros_like(self.counts))


def bins_torch(model: AcceptanceModel, confidence: torch.Tensor) -> torch.Tensor:
    """The bin of each confidence, int64; NaN is in bin 0."""
    return torch.bucketize(confidence.nan_to_num(0.0), model.edges, right=True)


def acceptance_torch(
    model: AcceptanceModel, confidence: torch.Tensor, requests: torch.Tensor, *, paths: bool = False
) -> torch.Tensor:
    """The conditional acceptance of each draft token of a chain, or of the path to each node of a tree.

    Args:
        model: the model.
        confidence: float32 ``[bs, s]``.
        requests: ``[bs]``, each request's row of the pool.
        paths: the confidences are path scores, all looked up in the table's first row.

    Returns:
        Probabilities, float32 ``[bs, s]``.
    """
    columns = torch.arange(confidence.shape[1], device=confidence.device)
    depth = torch.zeros_like(columns) if paths else columns
    logit = model.logits[depth, bins_torch(model, confidence)]
    return torch.sigmoid(logit + model.offsets[requests.long()].unsqueeze(1))
