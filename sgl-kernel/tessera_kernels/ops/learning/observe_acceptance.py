"""Learn on the device from what was accepted: counts for the table, an offset for each request."""

from __future__ import annotations

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel, acceptance_torch, bins_torch
from tessera_kernels.ops.learning.histogram import PROMISED_UNIT

OFFSET_RATE = 0.1
"""Step of the stochastic gradient of the log-likelihood; about 25 steps to learn a request's own acceptance."""
OFFSET_KEPT = 0.98
"""What is kept of an offset in each step: pulls towards the table, more so where little is observed."""
OFFSET_LIMIT = 3.0
"""In logits: 0.5 becomes 0.95 at most. A request that changes its kind must find its way back."""


def observe_acceptance(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """Update ``counts`` and ``offsets`` of the model (in place) with the outcome of one step.

    The draft token at depth d (from 0) was tested if it was verified, ``d < verify_lens - 1``, and all before it were
    accepted, ``d < accept_lens``; it succeeded if also ``d < accept_lens - 1``. What was not tested counts as nothing.
    Of every verified one its survival was promised, tested or not: before the verification nobody knows.
    The offset follows the gradient of the log-likelihood, sum(succeeded - expected) over the tested depths, shrunk.

    One launch on a GPU, on the current stream, without a host sync; `observe_acceptance_torch` elsewhere.

    Args:
        confidence: float32 ``[bs, s]``, as `tessera_kernels.ops.verify.allocate_verify` had it. A request without a
            draft teaches nothing.
        requests: ``[bs]`` int32 or int64, each request's row of the pool, no two alike.
        verify_lens: int32 ``[bs]`` or longer, the anchor included.
        accept_lens: int32 ``[bs]``, accepted tokens including the bonus token: 1 to verify_lens.
        model: updated.
    """
    if confidence.is_cuda:
        from tessera_kernels.triton.learning.observe_acceptance import observe_acceptance_triton

        observe_acceptance_triton(confidence, requests, verify_lens, accept_lens, model)
    else:
        observe_acceptance_torch(confidence, requests, verify_lens, accept_lens, model)


def observe_acceptance_torch(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """The torch twin of the Triton kernel: same arguments, same result up to the rounding of the sigmoid."""
    bs, steps = confidence.shape
    depth = torch.arange(steps, device=confidence.device)
    accepted = accept_lens.unsqueeze(1)
    verified = (depth < verify_lens[:bs].unsqueeze(1) - 1) & ~(confidence[:, :1] < 0)
    tested = verified & (depth < accepted)
    succeeded = tested & (depth < accepted - 1)
    expected = acceptance_torch(model, confidence, requests)
    places = bins_torch(model, confidence).t()
    model.counts[0, :steps].scatter_add_(1, places, tested.t().int())
    model.counts[1, :steps].scatter_add_(1, places, succeeded.t().int())
    promised = torch.where(verified, promised_torch(expected.cumprod(1)), 0)
    model.counts[2, :steps].scatter_add_(1, places, promised.t())
    gradient = torch.where(tested, succeeded.float() - expected, 0).sum(1)
    follow_torch(model, requests, gradient)


def promised_torch(survival: torch.Tensor) -> torch.Tensor:
    """Survivals as they are counted, int32."""
    return (survival / PROMISED_UNIT + 0.5).int()


def follow_torch(model: AcceptanceModel, requests: torch.Tensor, gradient: torch.Tensor) -> None:
    """Move the offsets of ``requests`` ``[bs]`` along the gradient ``[bs]`` of their log-likelihood (in place)."""
    offset = OFFSET_KEPT * model.offsets[requests.long()] + OFFSET_RATE * gradient
    model.offsets[requests.long()] = offset.clamp(-OFFSET_LIMIT, OFFSET_LIMIT)
