"""What the device knows about the acceptance of draft tokens: a table by depth and confidence, an offset per request.

The probability that the draft token at a depth is accepted, given that those before it were, is
``sigmoid(logits[depth, bin(confidence)] + offsets[request])``. `tessera.tilespec.calibration` fits the table.

For trees the table has one row, and what is looked up is a node's path score, the product of the confidences from the
root to it: it gives the probability that the whole path is accepted.
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
    """int32 ``[3, S, BINS]``: trials, successes, and accepted tokens promised (sums of the survivals of all tokens that
    were verified, in `PROMISED_UNIT`). They only grow (and wrap), so they may be read at any time."""

    @classmethod
    def create(cls, edges: torch.Tensor, logits: torch.Tensor, requests: int, device: str) -> AcceptanceModel:
        """A model on ``device`` with offsets and counts of zero."""
        return cls(
            edges.to(device, torch.float32).contiguous(),
            logits.to(device, torch.float32).contiguous(),
            torch.zeros(requests, dtype=torch.float32, device=device),
            torch.zeros((3, *logits.shape), dtype=torch.int32, device=device),
        )

    def sibling(self) -> AcceptanceModel:
        """Another table, as it is now, and counts of its own, for the same requests with the same offsets."""
        return self._replace(logits=self.logits.clone(), counts=torch.zeros_like(self.counts))


def bins_torch(model: AcceptanceModel, confidence: torch.Tensor) -> torch.Tensor:
    """The bin of each confidence, int64; NaN is in bin 0."""
    return torch.bucketize(confidence.nan_to_num(0.0), model.edges, right=True)


def acceptance_torch(
    model: AcceptanceModel, confidence: torch.Tensor, requests: torch.Tensor, *, paths: bool = False
) -> torch.Tensor:
    """The conditional acceptance of each draft token of a chain, or that of the path to each node of a tree.

    Float32 ``[bs, s]``.

    Args:
        model: the model.
        confidence: float32 ``[bs, s]``.
        requests: ``[bs]``, each request's row of the pool.
        paths: the confidences are path scores, all looked up in the table's first row.
    """
    columns = torch.arange(confidence.shape[1], device=confidence.device)
    depth = torch.zeros_like(columns) if paths else columns
    logit = model.logits[depth, bins_torch(model, confidence)]
    return torch.sigmoid(logit + model.offsets[requests.long()].unsqueeze(1))
