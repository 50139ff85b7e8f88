"""SGLang's layout of a ragged batch, from the buffers of the plan."""

from typing import Any

import torch
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

from tessera_kernels.ops.verify.allocate_verify import VerifyPlan


class PlanViews:
    """Views of the first requests of plans, cached, as creating them takes as long as two launches."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[VerifyPlan, dict[int, dict[str, torch.Tensor]]]] = {}

    def first(self, plan: VerifyPlan, requests: int) -> dict[str, torch.Tensor]:
        """The views of the first ``requests`` requests, by SGLang's names."""
        slots = plan.verify_lens.shape[0]
        cached = self._cached.get(slots)
        if cached is None or cached[0] is not plan:
            cached = self._cached[slots] = plan, {}
        views = cached[1].get(requests)
        if views is None:
            indptr = plan.qo_indptr[: requests + 1]
            views = cached[1][requests] = {
                "verify_lens": plan.verify_lens[:requests],
                "extend_start_loc": indptr[:-1],
                "qo_indptr_device": indptr,
            }
        return views


class PlannedLayout(RaggedVerifyLayout, frozen=True, kw_only=True):  # type: ignore[call-arg]  # a msgspec.Struct
    """A ``RaggedVerifyLayout`` whose tokens fill its graph, so that requests of padding have none.

    The plan's buffers already have what SGLang would compute with six kernels: the same numbers, padded with zeros and
    the total.
    """

    plan: VerifyPlan
    views: PlanViews

    def padded_to_bucket(self, *, padded_bs: int, cap: int | None = None) -> Any:
        """The layout for ``padded_bs`` requests; no request has more than ``cap`` tokens.

        Raises:
            RuntimeError: the plan has fewer slots.
        """
        slots = self.plan.verify_lens.shape[0]
        if padded_bs > slots:
            raise RuntimeError(f"tessera: a plan for {slots} requests, and a graph for {padded_bs}")
        return RaggedVerifyLayout(
            **self.views.first(self.plan, padded_bs),
            graph_num_tokens=self.graph_num_tokens,
            total_verify_tokens=self.graph_num_tokens if cap is None else None,
            cap=cap,
        )


def layout_of(plan: VerifyPlan, views: PlanViews, bs: int, tokens: int, rows: int) -> Any:
    """The layout of a verification of ``tokens`` tokens of ``bs`` requests, in a graph for ``rows`` tokens."""
    first = views.first(plan, bs)
    if tokens < rows:  # SGLang's kernels assign the others to requests of padding
        return RaggedVerifyLayout.from_verify_lens_device(verify_lens=first["verify_lens"], graph_num_tokens=rows)
    return PlannedLayout(**first, graph_num_tokens=rows, plan=plan, views=views)
