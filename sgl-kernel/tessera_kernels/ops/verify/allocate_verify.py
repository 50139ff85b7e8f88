"""Choose the draft tokens to verify: those of the whole batch most likely to be accepted, within a budget."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel, acceptance_torch
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT
from tessera_kernels.registry import op


class VerifyPlan(NamedTuple):
    """Outputs of `allocate_verify`, written in place."""

    verify_lens: torch.Tensor
    """int32 ``[slots]``, slots at least bs: tokens to verify of each request, the anchor included; 0 from bs on."""
    qo_indptr: torch.Tensor
    """int32 ``[slots + 1]``: where each request's tokens begin in the packed batch; the total from bs on."""
    survival: torch.Tensor
    """float32 ``[bs, s]``: probability that a draft token and all tokens before it are accepted; non-increasing."""
    histogram: torch.Tensor
    """int32 ``[2, S, 64]``: by column (depth, or rank of a tree's node) and bin of survival, the number of draft tokens
    and the sum of their survivals in `HISTOGRAM_UNIT`. It only grows, and wraps, so plans may share one."""

    @classmethod
    def create(cls, slots: int, steps: int, depths: int, device: str) -> VerifyPlan:
        """Uninitialized outputs for ``steps`` of at most ``depths`` draft steps, and an empty histogram."""
        return cls(
            torch.empty(slots, dtype=torch.int32, device=device),
            torch.empty(slots + 1, dtype=torch.int32, device=device),
            torch.empty((slots, steps), dtype=torch.float32, device=device),
            torch.zeros((2, depths, HISTOGRAM_BINS), dtype=torch.int32, device=device),
        )


@op
def allocate_verify(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    model: AcceptanceModel,
    tokens: int,
    plan: VerifyPlan,
    *,
    paths: bool = False,
) -> None:
    """Verify each request's anchor, and spend the rest of ``tokens`` on the draft tokens with the greatest survival.

    Survival is the running product of the calibrated conditional acceptance over the depths of a chain, or the running
    minimum of the calibrated acceptance of paths over the nodes of a tree. So a prefix of each request's draft is
    chosen. Ties go to the lower column, then to the earlier request.
    ``sum(verify_lens) == min(tokens, bs * (s + 1))``.

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel up to the rounding of the sigmoid.

    Args:
        confidence: float32 ``[bs, s]``, rows of any stride, columns contiguous; NaN counts as 0. A value
            below 0 in the first column marks a request without a draft: its tokens come last, and the histogram omits
            it.
        requests: ``[bs]`` int32 or int64, each request's row of the pool.
        model: the acceptance model, with S at least s; for ``paths`` its first row is enough.
        tokens: the budget: tokens that the batch verifies in all, at least bs.
        plan: written; its histogram is added to. ``survival`` may have more rows than bs and more columns than s, which
            are not written. Plans of one size for all batches need one compilation of the kernel.
        paths: drafts are trees: ``confidence`` has the path scores of a request's nodes, in descending order.

    Raises:
        ValueError: fewer tokens than requests.
    """
    check_budget(confidence, tokens)
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
    _add_to_histogram(survival, drafted, plan.histogram)


def check_budget(confidence: torch.Tensor, tokens: int) -> None:
    """Raise ValueError where there are fewer tokens than requests."""
    if tokens < confidence.shape[0]:
        raise ValueError(f"tokens: got {tokens}; allowed: at least one for each of {confidence.shape[0]} requests")


def _add_to_histogram(survival: torch.Tensor, drafted: torch.Tensor, histogram: torch.Tensor) -> None:
    steps = survival.shape[1]
    bins = (survival * HISTOGRAM_BINS).long().clamp(max=HISTOGRAM_BINS - 1).t()
    amount = (survival / HISTOGRAM_UNIT + 0.5).int().t()
    histogram[0, :steps].scatter_add_(1, bins, drafted.int().t().expand_as(amount))
    histogram[1, :steps].scatter_add_(1, bins, amount)
