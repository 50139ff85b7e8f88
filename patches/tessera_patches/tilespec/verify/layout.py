"""What SGLang wants to know of a ragged batch, from the plan that says it already."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

from tessera_kernels.ops.verify.allocate_verify import VerifyPlan


class PlanViews:
    """The beginnings of plans, the same few buffers in each step: to make views anew takes as long as two launches."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[VerifyPlan, dict[int, dict[str, torch.Tensor]]]] = {}

    def first(self, plan: VerifyPlan, requests: int) -> dict[str, torch.Tensor]:
        """What a plan says of its first requests, by SGLang's names."""
        slots = plan.verify_lens.shape[0]
        kept = self._kept.get(slots)
        if kept is None or kept[0] is not plan:
            kept = self._kept[slots] = plan, {}
        views = kept[1].get(requests)
        if views is None:
            indptr = plan.qo_indptr[: requests + 1]
            views = kept[1][requests] = {
                "verify_lens": plan.verify_lens[:requests],
                "extend_start_loc": indptr[:-1],
                "qo_indptr_device": indptr,
            }
        return views


class PlannedLayout(RaggedVerifyLayout, frozen=True, kw_only=True):  # type: ignore[call-arg]  # a msgspec.Struct
    """A ``RaggedVerifyLayout`` that fills its graph: requests of padding have no tokens.

    Then a plan holds what SGLang computes anew for the graph, for its attention and at the beginning, with six
    kernels: the same numbers, with zeros and the total behind the batch.
    """

    plan: VerifyPlan
    views: PlanViews

    def padded_to_bucket(self, *, padded_bs: int, cap: int | None = None) -> Any:
        """For ``padded_bs`` requests; none has more than ``cap`` tokens anyhow.

        Raises:
            RuntimeError: the plan has no room for so many.
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
    """The layout of a verification of ``tokens`` tokens of ``bs`` requests in a graph for ``rows`` tokens."""
    first = views.first(plan, bs)
    if tokens < rows:  # what is left goes to requests of padding: SGLang's kernels give it to them
        return RaggedVerifyLayout.from_verify_lens_device(verify_lens=first["verify_lens"], graph_num_tokens=rows)
    return PlannedLayout(**first, graph_num_tokens=rows, plan=plan, views=views)
