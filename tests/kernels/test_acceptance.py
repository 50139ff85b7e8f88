"""Draft confidence and what is learnt from acceptance: Triton against float64 or plain loops, and the torch twins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera_kernels.ops.draft.draft_confidence import draft_confidence_torch
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import PROMISED_UNIT
from tessera_kernels.ops.learning.observe_acceptance import (
    OFFSET_KEPT,
    OFFSET_LIMIT,
    OFFSET_RATE,
    observe_acceptance_torch,
)
from tessera_kernels.triton.draft.draft_confidence import COLUMNS_PER_SPLIT, draft_confidence_triton
from tessera_kernels.triton.learning.observe_acceptance import observe_acceptance_triton

several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
INF, NAN = float("inf"), float("nan")
CONFIDENCE = (draft_confidence_triton, draft_confidence_torch)


def confidence_of(run: Any, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Call it with outputs that are columns of larger, poisoned tensors, as the draft loop does."""
    rows = logits.shape[0]
    probability = torch.full((rows, 3), NAN, device=logits.device)
    index = torch.full((rows, 3), -1, device=logits.device)
    run(logits, probability[:, 1], index[:, 1])
    assert probability[:, [0, 2]].isnan().all()
    assert (index[:, [0, 2]] == -1).all()
    return probability[:, 1], index[:, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [1, 2, 100, COLUMNS_PER_SPLIT, COLUMNS_PER_SPLIT + 1, 3 * COLUMNS_PER_SPLIT + 77])
@pytest.mark.parametrize("spare", [3, 16])
def test_confidence(device: str, columns: int, spare: int, dtype: torch.dtype) -> None:
    """The arg-max that torch finds on a CPU, and the softmax in float64, with rows of a larger tensor."""
    rng = torch.Generator().manual_seed(columns)
    logits = (torch.randn(5, columns + spare, generator=rng) * 4).to(dtype)[:, :columns]
    best, where = logits.double().softmax(1).max(1)
    for run in CONFIDENCE:
        probability, index = confidence_of(run, logits.to(device))
        assert torch.equal(index.cpu(), where)
        torch.testing.assert_close(probability.cpu().double(), best, rtol=1e-5, atol=0)


def test_a_drafted_token_continues_its_chain(device: str) -> None:
    """Positions go up by one, and the token is written to one column more; both or either."""
    logits = torch.eye(4, 100, device=device)[[2, 0, 3]]
    for run in CONFIDENCE:
        for advanced, chained in ((True, True), (True, False), (False, True)):
            positions, chain = torch.tensor([7, 0, 40], device=device), torch.full((3, 5), -1, device=device)
            probability, index = torch.empty(3, device=device), torch.empty((3, 1), dtype=torch.int64, device=device)
            run(logits, probability, index[:, 0], positions if advanced else None, chain[:, 2] if chained else None)
            assert index.flatten().tolist() == [2, 0, 3]
            assert positions.tolist() == ([8, 1, 41] if advanced else [7, 0, 40])
            assert chain[:, 2].tolist() == ([2, 0, 3] if chained else [-1] * 3)
            assert (chain[:, [0, 1, 3, 4]] == -1).all()


def test_a_drafted_token_has_the_targets_number(device: str) -> None:
    """Where the draft's numbers are others: in both places; the probability is that of the draft's token."""
    columns = COLUMNS_PER_SPLIT + 10
    logits = torch.eye(columns, device=device)[[2, 0, COLUMNS_PER_SPLIT + 3]]
    numbers = torch.arange(columns, device=device).flip(0) * 4
    for run in CONFIDENCE:
        chain, index = torch.full((2, 3), -1, device=device), torch.empty(3, dtype=torch.int64, device=device)
        probability = torch.empty(3, device=device)
        run(logits, probability, index, None, chain[0], numbers)
        assert index.tolist() == [4 * (columns - 3), 4 * (columns - 1), 4 * 6]
        assert chain.tolist() == [index.tolist(), [-1] * 3]
        torch.testing.assert_close(probability, torch.full_like(probability, math.e / (math.e + columns - 1)))


@several
@given(st.integers(1, 3 * COLUMNS_PER_SPLIT), st.integers(0, 2**31))
def test_ties_go_to_the_lowest_index(device: str, columns: int, seed: int) -> None:
    """Few distinct values: the maximum is there many times, within a piece and across pieces."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 1 + seed % 4, (2, columns), generator=rng).to(torch.bfloat16)
    for run in CONFIDENCE:
        _, index = confidence_of(run, logits.to(device))
        assert index.tolist() == [line.index(max(line)) for line in logits.tolist()]


def test_logits_that_are_not_finite(device: str) -> None:
    """The index stays in range; what is not a probability is 0; minus infinity is an ordinary logit."""
    columns = COLUMNS_PER_SPLIT + 10
    logits = torch.zeros(6, columns, device=device)
    logits[0, 7] = NAN
    logits[1, columns - 1] = INF
    logits[2, :] = -INF
    logits[3, :COLUMNS_PER_SPLIT] = -INF
    logits[4, 0] = -INF
    logits[5, [3, 9]] = torch.tensor([INF, NAN], device=device)
    for run in CONFIDENCE:
        probability, index = confidence_of(run, logits)
        assert index.tolist() == [7, columns - 1, 0, COLUMNS_PER_SPLIT, 1, 3]
        expected = torch.tensor([0, 0, 0, 1 / 10, 1 / (columns - 1), 0])
        torch.testing.assert_close(probability.cpu(), expected)


EDGES = [0.125, 0.25, 0.5, 0.625, 0.75, 0.875, 0.96875]  # exact in float32


def bin_of(confidence: float) -> int:
    """Edges at or below it."""
    return sum(edge <= confidence for edge in EDGES)


@several
@given(st.integers(1, 20), st.sampled_from([1, 3, 7]), st.integers(0, 2**31))
def test_observation(device: str, bs: int, steps: int, seed: int) -> None:
    """Counts and offsets as a plain loop over what was tested has them, for confidences on the edges too."""
    rng = torch.Generator().manual_seed(seed)
    choice = torch.tensor([*EDGES, 0.0, 0.3, 1.0, NAN])
    confidence = choice[torch.randint(0, len(choice), (bs, steps), generator=rng)]
    confidence[: seed % 3, 0] = -1.0  # these have no draft
    verify_lens = torch.randint(1, steps + 2, (bs,), generator=rng).int()
    accept_lens = (1 + (torch.rand(bs, generator=rng) * verify_lens).int()).clamp(max=verify_lens)
    requests = torch.randperm(32, generator=rng)[:bs]
    logits = torch.randn(steps + 1, len(EDGES) + 1, generator=rng)
    offsets = torch.randn(32, generator=rng) * 2

    counts = torch.full((3, *logits.shape), -2, dtype=torch.int32)
    after = offsets.clone()
    for b, request in enumerate(requests.tolist()):
        gradient, survival = 0.0, 1.0
        for depth in range(int(verify_lens[b]) - 1 if b >= seed % 3 else 0):
            place = bin_of(float(confidence[b, depth]))
            chance = 1 / (1 + math.exp(-float(logits[depth, place] + offsets[request])))
            survival *= chance
            counts[2, depth, place] += int(survival / PROMISED_UNIT + 0.5)
            if depth >= accept_lens[b]:
                continue  # not tested
            success = depth < accept_lens[b] - 1
            counts[0, depth, place] += 1
            counts[1, depth, place] += int(success)
            gradient += int(success) - chance
        moved = OFFSET_KEPT * float(offsets[request]) + OFFSET_RATE * gradient
        after[request] = min(max(moved, -OFFSET_LIMIT), OFFSET_LIMIT)

    observe: Any
    for observe in (observe_acceptance_triton, observe_acceptance_torch):
        model = AcceptanceModel.create(torch.tensor(EDGES), logits, 32, device)
        model.offsets.copy_(offsets)
        model.counts.fill_(-2)
        observe(*(t.to(device) for t in (confidence, requests, verify_lens, accept_lens)), model)
        assert torch.equal(model.counts.cpu()[:2], counts[:2])
        assert (model.counts.cpu() - counts).abs().max() <= bs  # each survival rounded once
        torch.testing.assert_close(model.offsets.cpu(), after, rtol=1e-5, atol=1e-6)


def test_an_offset_learns_a_request(device: str) -> None:
    """A request whose drafts always fail falls below the table, one that always succeeds rises; others stay."""
    model = AcceptanceModel.create(torch.tensor(EDGES), torch.zeros(2, 8), 4, device)
    confidence = torch.full((2, 2), 0.5, device=device)
    requests = torch.tensor([0, 3], device=device)
    verify_lens = torch.tensor([3, 3], dtype=torch.int32, device=device)
    accept_lens = torch.tensor([1, 3], dtype=torch.int32, device=device)
    for _ in range(40):
        observe_acceptance_triton(confidence, requests, verify_lens, accept_lens, model)
    down, *same, up = model.offsets.tolist()
    assert same == [0, 0]
    assert -OFFSET_LIMIT <= down < -0.7
    assert 0.7 < up <= OFFSET_LIMIT
