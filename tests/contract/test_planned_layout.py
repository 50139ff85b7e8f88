"""The layout of a ragged verification that fills its graph: what SGLang's own kernels make of the same lengths."""

from __future__ import annotations

import random

import pytest
import torch
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_patches.tilespec.verify.layout import PlannedLayout, PlanViews, layout_of

SLOTS, WIDTH = 16, 8
TENSORS = ("verify_lens", "extend_start_loc", "qo_indptr_device")


def plan_of(lens: list[int]) -> VerifyPlan:
    """As `tessera_kernels.ops.verify.allocate_verify` writes it."""
    plan = VerifyPlan.create(SLOTS, WIDTH - 1, WIDTH - 1, "cpu")
    plan.verify_lens.zero_()
    plan.verify_lens[: len(lens)] = torch.tensor(lens)
    plan.qo_indptr[0] = 0
    plan.qo_indptr[1:] = plan.verify_lens.cumsum(0)
    return plan


def check(ours: RaggedVerifyLayout, theirs: RaggedVerifyLayout) -> None:
    """The same numbers of the same types."""
    for name in TENSORS:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=0)
    for name in ("graph_num_tokens", "total_verify_tokens", "cap", "bs"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("bs", [1, 3, 16])
def test_it_is_what_sglang_computes(bs: int) -> None:
    """As it is, and padded to the slots of a graph, with a limit and without."""
    lens = [random.Random(bs + place).randint(1, WIDTH) for place in range(bs)]
    plan, tokens = plan_of(lens), sum(lens)
    ours = layout_of(plan, PlanViews(), bs, tokens, tokens)
    theirs = RaggedVerifyLayout.from_verify_lens_device(verify_lens=plan.verify_lens[:bs], graph_num_tokens=tokens)
    assert isinstance(ours, PlannedLayout)
    check(ours, theirs)
    for slots in (bs, SLOTS):
        for cap in (None, WIDTH):
            check(ours.padded_to_bucket(padded_bs=slots, cap=cap), theirs.padded_to_bucket(padded_bs=slots, cap=cap))


def test_a_greater_graph_is_left_to_sglang() -> None:
    """Its padding has tokens, which no plan holds."""
    layout = layout_of(plan_of([2, 3]), PlanViews(), 2, 5, 8)
    assert not isinstance(layout, PlannedLayout)
    assert layout.padded_to_bucket(padded_bs=4).verify_lens.tolist() == [2, 3, 2, 1]


def test_views_are_kept_of_the_plan_that_they_are_of() -> None:
    """The same ones in the next step; another plan of the same size has its own, and those of other sizes stay."""
    views = PlanViews()
    one, other = plan_of([1, 2]), plan_of([3, 1, 2])
    small = VerifyPlan.create(4, WIDTH - 1, WIDTH - 1, "cpu")
    kept = views.first(small, 4)
    first = views.first(one, 2)
    one.verify_lens[0] = 5
    assert views.first(one, 2) is first
    assert first["verify_lens"].tolist() == [5, 2]
    assert views.first(one, 1)["qo_indptr_device"].tolist() == [0, 1]
    assert views.first(other, 2)["verify_lens"].tolist() == [3, 1]
    assert views.first(one, 2)["verify_lens"].tolist() == [5, 2]
    assert views.first(small, 4) is kept


def test_a_plan_that_is_too_small_is_an_error() -> None:
    """And not a shorter batch."""
    with pytest.raises(RuntimeError, match="a plan for 16 requests, and a graph for 17"):
        layout_of(plan_of([1]), PlanViews(), 1, 1, 1).padded_to_bucket(padded_bs=SLOTS + 1)
