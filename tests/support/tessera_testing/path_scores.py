"""Random path scores of draft trees, and the acceptance model that they are looked up in."""

from __future__ import annotations

import math

import torch

from tessera.tilespec.scores import NO_DRAFT
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel

EDGES = [0.125, 0.25, 0.5, 0.625, 0.75, 0.875, 0.96875]  # exact in float32
REQUESTS = 48


def model_of(rng: torch.Generator, device: str) -> AcceptanceModel:
    """A model with a table of one row, not monotonic, and random offsets."""
    model = AcceptanceModel.create(torch.tensor(EDGES), torch.randn(1, 8, generator=rng) * 2, REQUESTS, device)
    model.offsets.copy_(torch.randn(REQUESTS, generator=rng))
    return model


def scores_of(rng: torch.Generator, bs: int, nodes: int, undrafted: int) -> torch.Tensor:
    """Path scores in descending order, many of them equal or on edges of bins; the first requests have no draft."""
    choice = torch.tensor([*EDGES, 0.0, 0.3, 1.0])
    scores = choice[torch.randint(0, len(choice), (bs, nodes), generator=rng)].sort(1, descending=True).values
    scores[:undrafted] = NO_DRAFT
    return scores


def acceptance(model: AcceptanceModel, score: float, request: int) -> float:
    """The probability that the path is accepted."""
    place = sum(edge <= score for edge in EDGES)
    return 1 / (1 + math.exp(-float(model.logits[0, place]) - float(model.offsets[request])))
