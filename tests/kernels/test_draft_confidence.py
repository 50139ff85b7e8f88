"""The draft's most likely token and its probability: Triton and the torch reference against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.ops.draft.draft_confidence import draft_confidence
from tessera_kernels.triton.draft.draft_confidence import COLUMNS_PER_SPLIT, draft_confidence_triton
from tessera_testing.examples import several

INF, NAN = float("inf"), float("nan")
CONFIDENCE = (draft_confidence_triton, draft_confidence.reference)


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
