"""Which draft tokens to verify: the most likely ones of the whole batch, as many as the step can afford."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel, acceptance_torch
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT


class VerifyPlan(NamedTuple):
    """Outputs of `allocate_verify`, written in place."""

    verify_lens: torch.Tensor
    """int32 ``[slots]``, slots at least bs: tokens to verify for each request, the anchor included; 0 behind bs."""
    qo_indptr: torch.Tensor
    """int32 ``[slots + 1]``: where each request's tokens begin in the packed batch; the total behind bs."""
    survival: torch.Tensor
    """float32 ``[bs, s]``: probability that this draft token and all that it continues are accepted; non-increasing."""
    histogram: torch.Tensor
    """int32 ``[2, S, 64]``: by column (depth, or rank of a tree's node) and bin of survival, how many draft tokens
    there were, and the sum of their survivals in units of 2^-18. It only grows (and wraps), so plans may share one."""

    @classmethod
    def create(cls, slots: int, steps: int, depths: int, device: str) -> VerifyPlan:
        """Fresh outputs for ``steps`` draft steps of at most ``depths``, and an empty histogram."""
        return cls(
            torch.empty(slots, dtype=torch.int32, device=device),
            torch.empty(slots + 1, dtype=torch.int32, device=device),
            torch.empty((slots, steps), dtype=torch.float32, device=device),
            torch.zeros((2, depths, HISTOGRAM_BINS), dtype=torch.int32, device=device),
        )


def allocate_verify(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    model: AcceptanceModel,
    tokens: int,
    plan: VerifyPlan,
    *,
    paths: bool = False,
) -> None:
    """Give each request its anchor, and the rest of ``tokens`` to the draft tokens with the greatest survival.

    Survival is the running product of the calibrated conditional acceptance over the depths of a chain, and the running
    minimum of the calibrated acceptance of paths over the nodes of a tree. So what is chosen is a prefix of each
    request's draft. Ties go to the lesser column, then to the earlier request. Then
    ``sum(verify_lens) == min(tokens, bs * (s + 1))``.

    One launch on a GPU, on the current stream, without a host sync; `allocate_verify_torch` elsewhere.

    Args:
        confidence: float32 ``[bs, s]``, rows of any stride, columns contiguous; NaN counts as 0. Below 0 in the first
            column: the request has no draft in truth (its worker was not asked for one). Its tokens come last, and the
            histogram leaves it out.
        requests: ``[bs]`` int32 or int64, each request's row of the pool.
        model: the acceptance model, with S at least s; for ``paths`` its first row is enough.
        tokens: what the batch verifies in all, at least bs.
        plan: written, and its histogram added to. ``survival`` may have more rows than bs and more columns than s;
            they stay as they are. Buffers of one size for all batches keep the kernel at one compilation.
        paths: drafts are trees: ``confidence`` has the path scores of a request's nodes, in descending order.

    Raises:
        ValueError: fewer tokens than requests.
    """
    if tokens < confidence.shape[0]:
        raise ValueError(f"tokens: got {tokens}; allowed: at least one for each of {confidence.shape[0]} requests")
    if confidence.is_cuda:
        from tessera_kernels.triton.verify.allocate_verify import allocate_verify_triton

        allocate_verify_triton(confidence, requests, model, tokens, plan, paths=paths)
    else:
        allocate_verify_torch(confidence, requests, model, tokens, plan, paths=paths)


def allocate_verify_torch(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    model: AcceptanceModel,
    tokens: int,
    plan: VerifyPlan,
    *,
    paths: bool = False,
) -> None:
    """The torch twin of the Triton kernel: same arguments, same result up to the rounding of the sigmoid."""
    bs, steps = confidence.shape
    drafted = ~(confidence[:, :1] < 0)
    acceptance = acceptance_torch(model, confidence, requests, paths=paths)
    survival = (acceptance.cummin(1).values if paths else acceptance.cumprod(1)) * drafted
    plan.survival[:bs, :steps] = survival
    by_column = survival.t().flatten()
    chosen = by_column.argsort(descending=True, stable=True)[: tokens - bs] % bs
    lens = 1 + torch.bincount(chosen, minlength=bs)
    plan.verify_lens.zero_()
    plan.verify_lens[:bs] = lens
    plan.qo_indptr[0] = 0
    plan.qo_indptr[1:] = plan.verify_lens.cumsum(0)
    _histogram(survival, drafted, plan.histogram)


def _histogram(survival: torch.Tensor, drafted: torch.Tensor, histogram: torch.Tensor) -> None:
    steps = survival.shape[1]
    place = (survival * HISTOGRAM_BINS).long().clamp(max=HISTOGRAM_BINS - 1).t()
    amount = (survival / HISTOGRAM_UNIT + 0.5).int().t()
    histogram[0, :steps].scatter_add_(1, place, drafted.int().t().expand_as(amount))
    histogram[1, :steps].scatter_add_(1, place, amount)
