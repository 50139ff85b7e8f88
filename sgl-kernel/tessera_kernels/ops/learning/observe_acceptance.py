"""Update the acceptance model with the outcome of a verification of chains: counts and offsets."""

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel, acceptance_torch, bins_torch
from tessera_kernels.ops.learning.histogram import PREDICTION_UNIT
from tessera_kernels.registry import op

OFFSET_RATE = 0.1
"""Learning rate of the offsets: stochastic gradient ascent on the log-likelihood, about 25 steps to converge."""
OFFSET_DECAY = 0.98
"""Factor of an offset in each step (weight decay): pulls towards the table, the more the less is observed."""
OFFSET_LIMIT = 3.0
"""Bound of an offset, in logits: 0.5 becomes at most 0.95. A request whose text changes must be able to recover."""


@op
def observe_acceptance(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """Update ``counts`` and ``offsets`` of the model (in place) with the outcome of one step.

    The draft token at depth d (from 0) was tested if it was verified, ``d < verify_lens - 1``, and all before it were
    accepted, ``d < accept_lens``; it succeeded if also ``d < accept_lens - 1``. Untested tokens are censored: neither
    trial nor success. Predictions count every verified token with its survival, tested or not. The offset takes a step
    along the gradient of the log-likelihood, sum(succeeded - expected) over the tested depths, with weight decay.

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel up to the rounding of the sigmoid.

    Args:
        confidence: float32 ``[bs, s]``, as in `tessera_kernels.ops.verify.allocate_verify`. The offset of a
            request without a draft only decays.
        requests: ``[bs]`` int32 or int64, each request's row of the pool, all different.
        verify_lens: int32 ``[bs]`` or longer, the anchor included.
        accept_lens: int32 ``[bs]``, accepted tokens including the bonus token: 1 to verify_lens.
        model: updated.
    """
    bs, steps = confidence.shape
    depth = torch.arange(steps, device=confidence.device)
    accepted = accept_lens.unsqueeze(1)
    verified = (depth < verify_lens[:bs].unsqueeze(1) - 1) & ~(confidence[:, :1] < 0)
    tested = verified & (depth < accepted)
    succeeded = tested & (depth < accepted - 1)
    expected = acceptance_torch(model, confidence, requests)
    bins = bins_torch(model, confidence).t()
    model.counts[0, :steps].scatter_add_(1, bins, tested.t().int())
    model.counts[1, :steps].scatter_add_(1, bins, succeeded.t().int())
    predicted = torch.where(verified, prediction_units_torch(expected.cumprod(1)), 0)
    model.counts[2, :steps].scatter_add_(1, bins, predicted.t())
    gradient = torch.where(tested, succeeded.float() - expected, 0).sum(1)
    update_offsets_torch(model, requests, gradient)


def prediction_units_torch(survival: torch.Tensor) -> torch.Tensor:
    """Survivals as int32 in units of `PREDICTION_UNIT`, rounded."""
    return (survival / PREDICTION_UNIT + 0.5).int()


def update_offsets_torch(model: AcceptanceModel, requests: torch.Tensor, gradient: torch.Tensor) -> None:
    """Update the offsets of ``requests`` ``[bs]`` by the gradient ``[bs]`` of the log-likelihood (in place)."""
    offset = OFFSET_DECAY * model.offsets[requests.long()] + OFFSET_RATE * gradient
    model.offsets[requests.long()] = offset.clamp(-OFFSET_LIMIT, OFFSET_LIMIT)
