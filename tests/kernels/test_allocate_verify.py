"""Which draft tokens are verified: Triton against brute force and against the torch reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify
from tessera_kernels.triton.verify.allocate_verify import allocate_verify_triton
from tessera_testing import path_scores
from tessera_testing.examples import several

BINS = 32
POISON = -(2**30)

sizes = st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 3, 5, 7, 16]), st.integers(0, 2**31))
batches = st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 7, 15]), st.integers(0, 2**31))


def model_of(rng: torch.Generator, depths: int, device: str) -> AcceptanceModel:
    """A model with a random table and offsets for 64 requests."""
    edges = torch.linspace(0, 1, BINS + 1)[1:-1]
    model = AcceptanceModel.create(edges, torch.randn(depths, BINS, generator=rng) * 2, 64, device)
    model.offsets.copy_(torch.randn(64, generator=rng))
    return model


def poisoned(slots: int, steps: int, depths: int, device: str) -> VerifyPlan:
    """Outputs in which nothing is right yet, with room for all depths."""
    plan = VerifyPlan.create(slots, depths, depths, device)
    for output in (plan.verify_lens, plan.qo_indptr, plan.histogram):
        output.fill_(POISON)
    plan.survival.fill_(float("nan"))
    return plan


def expected_lens(survival: list[list[float]], tokens: int) -> list[int]:
    """Brute force: sort all draft tokens by survival, then depth, then request."""
    order = sorted((-p, depth, row) for row, line in enumerate(survival) for depth, p in enumerate(line))
    lens = [1] * len(survival)
    for _, _, row in order[: tokens - len(survival)]:
        lens[row] += 1
    return lens


@several
@given(sizes, st.floats(0, 1.2), st.booleans())
def test_allocation(device: str, size: tuple[int, int, int], share: float, ties: bool) -> None:
    """Exactly the tokens asked for, the most likely ones, in prefixes; survivals and histogram as in the reference."""
    bs, steps, seed = size
    rng = torch.Generator().manual_seed(seed)
    depths, slots = steps + seed % 3, bs + seed % 5
    model = model_of(rng, depths, device)
    if ties:
        model.offsets.zero_()
    confidence = torch.rand(bs, steps + 1, generator=rng)[:, :steps]
    confidence = (confidence * 3).round() / 3 if ties else confidence
    confidence[: seed % 3, 0] = -1.0  # these have no draft
    confidence = confidence.to(device)
    requests = torch.randperm(64, generator=rng)[:bs].to(device)
    tokens = bs + int(share * bs * steps)
    plan, reference = poisoned(slots, steps, depths, device), poisoned(slots, steps, depths, device)
    allocate_verify_triton(confidence, requests, model, tokens, plan)
    allocate_verify.reference(confidence, requests, model, tokens, reference)

    survival = plan.survival[:bs, :steps].clone()
    torch.testing.assert_close(survival, reference.survival[:bs, :steps], rtol=1e-5, atol=1e-7)
    plan.survival[:bs, :steps] = float("nan")
    assert plan.survival.isnan().all()
    plan.survival[:bs, :steps] = survival
    assert (survival.diff(dim=1) <= 0).all()
    lens = expected_lens(survival.tolist(), tokens)
    assert plan.verify_lens.tolist() == lens + [0] * (slots - bs)
    assert sum(lens) == min(tokens, bs * (steps + 1))
    assert plan.qo_indptr.tolist() == [sum(lens[:b]) for b in range(slots + 1)]
    assert reference.verify_lens.tolist()[:bs] == expected_lens(reference.survival[:bs, :steps].tolist(), tokens)

    assert (survival[: seed % 3] == 0).all()
    check_histogram(plan, range(min(seed % 3, bs), bs), steps)
    check_histogram(reference, range(min(seed % 3, bs), bs), steps)


@pytest.mark.parametrize(("bs", "steps"), [(64, 7), (512, 16)])
def test_allocation_at_the_sizes_that_are_served(device: str, bs: int, steps: int) -> None:
    """In one launch, and nothing is lost in it."""
    rng = torch.Generator().manual_seed(bs)
    edges = torch.linspace(0, 1, BINS + 1)[1:-1]
    model = AcceptanceModel.create(edges, torch.randn(steps, BINS, generator=rng) * 2, bs, device)
    confidence = torch.rand(bs, steps, generator=rng).to(device)
    plan = poisoned(bs, steps, steps, device)
    allocate_verify_triton(confidence, torch.randperm(bs, generator=rng).to(device), model, 3 * bs, plan)
    assert plan.verify_lens.tolist() == expected_lens(plan.survival.tolist(), 3 * bs)
    check_histogram(plan, range(bs), steps)


def check_histogram(plan: VerifyPlan, drafted: range, steps: int) -> None:
    """What was added to the histogram is that of the survivals beside it, of requests that have a draft."""
    counts, sums = torch.zeros_like(plan.histogram, device="cpu", dtype=torch.float64)
    for line in plan.survival[drafted.start : drafted.stop, :steps].tolist():
        for depth, p in enumerate(line):
            cell = min(int(p * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)
            counts[depth, cell] += 1
            sums[depth, cell] += p
    added = (plan.histogram - POISON).cpu()
    assert torch.equal(added[0], counts.int())
    unit = HISTOGRAM_UNIT
    torch.testing.assert_close(added[1].double() * unit, sums, rtol=0, atol=drafted.stop * unit)


def test_confidence_that_is_not_a_number(device: str) -> None:
    """It counts as the least confidence, so a broken draft never takes another request's share."""
    model = model_of(torch.Generator().manual_seed(1), 2, device)
    model.logits.copy_(torch.linspace(-4, 4, BINS))
    model.offsets.zero_()
    confidence = torch.tensor([[float("nan"), 1.0], [0.9, 0.9], [1.0, float("nan")]], device=device)
    for allocate in (allocate_verify_triton, allocate_verify.reference):
        plan = poisoned(3, 2, 2, device)
        allocate(confidence, torch.arange(3, device=device), model, 3 + 3, plan)
        assert plan.verify_lens.tolist() == [1, 3, 2]


def test_fewer_tokens_than_requests_is_refused(device: str) -> None:
    """Every request verifies its anchor."""
    model = model_of(torch.Generator(), 1, device)
    with pytest.raises(ValueError, match="tokens: got 1; allowed: at least one for each of 2 requests"):
        allocate_verify(torch.ones(2, 1, device=device), torch.arange(2), model, 1, poisoned(2, 1, 1, device))


@several
@given(batches, st.floats(0, 1.2))
def test_allocation_of_trees(device: str, batch: tuple[int, int, int], share: float) -> None:
    """The likeliest nodes of the whole batch, prefixes of each request's, whatever the table says."""
    bs, nodes, seed = batch
    rng = torch.Generator().manual_seed(seed)
    undrafted, slots = min(seed % 3, bs), bs + seed % 5
    model, scores = path_scores.model_of(rng, device), path_scores.scores_of(rng, bs, nodes, undrafted)
    requests = torch.randperm(path_scores.REQUESTS, generator=rng)[:bs]
    tokens = bs + int(share * bs * nodes)
    allocate: Any
    for allocate in (allocate_verify_triton, allocate_verify.reference):
        plan = VerifyPlan.create(slots, nodes, nodes, device)
        plan.histogram.fill_(2**31 - 1)  # it wraps
        allocate(scores.to(device), requests.to(device), model, tokens, plan, paths=True)
        survival = plan.survival[:bs].cpu()
        for b, request in enumerate(requests.tolist()):
            least = 1.0 if b >= undrafted else 0.0
            for node in range(nodes):
                least = min(least, path_scores.acceptance(model, float(scores[b, node]), request))
                assert math.isclose(float(survival[b, node]), least, rel_tol=1e-5)
        order = sorted((-p, node, b) for b, line in enumerate(survival.tolist()) for node, p in enumerate(line))
        lens = [1] * bs
        for _, _, b in order[: tokens - bs]:
            lens[b] += 1
        assert plan.verify_lens.tolist() == lens + [0] * (slots - bs)
        assert plan.qo_indptr.tolist() == [sum(lens[:b]) for b in range(slots + 1)]
        counts, sums = torch.zeros(2, nodes, HISTOGRAM_BINS, dtype=torch.float64)
        for line in survival[undrafted:].tolist():
            for node, p in enumerate(line):
                counts[node, min(int(p * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)] += 1
                sums[node, min(int(p * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)] += p
        added = (plan.histogram - (2**31 - 1)).cpu()
        assert torch.equal(added[0], counts.int())
        unit = HISTOGRAM_UNIT
        torch.testing.assert_close(added[1].double() * unit, sums, rtol=0, atol=bs * unit)
