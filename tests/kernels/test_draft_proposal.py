"""Draft tokens that are samples: the Triton kernels and their torch reference against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tessera_kernels.ops.draft.draft_proposal import draft_proposal
from tessera_kernels.triton.draft import draft_proposal as kernels

SMALL = 64
INF, NAN = math.inf, math.nan
BOTH = {"triton": kernels.draft_proposal_triton, "torch": draft_proposal.reference}
KERNELS = pytest.mark.parametrize("propose", BOTH.values(), ids=BOTH)
Propose = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
Found = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks of few tokens."""
    monkeypatch.setattr(kernels, "CHUNK", SMALL)


def proposed(
    propose: Propose, logits: torch.Tensor, temperatures: torch.Tensor, coins: torch.Tensor, device: str
) -> Found:
    """Call it with poisoned outputs, the last of them a column of a larger tensor, as the draft loop does."""
    rows, known = logits.shape
    q = torch.full((rows, known), NAN, device=device)
    index = torch.full((rows,), -1, device=device)
    probability = torch.full((rows, 3), NAN, device=device)
    propose(logits.to(device), temperatures.to(device), coins.to(device), q, index, probability[:, 1])
    assert probability[:, [0, 2]].isnan().all()
    return q.cpu(), index.cpu(), probability[:, 1].cpu()


@KERNELS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("known", [1, 2, SMALL, SMALL + 1, 3 * SMALL + 17])
def test_as_float64_has_it(propose: Propose, device: str, known: int, dtype: torch.dtype) -> None:
    """q, its greatest value, and the token of each coin, from rows of a larger tensor; some can never be drawn."""
    rng = torch.Generator().manual_seed(known)
    logits = (3 * torch.randn(40, known + 3, generator=rng)).to(dtype)[:, :known]
    logits[torch.rand(logits.shape, generator=rng) < 0.2] = -INF
    logits[:, known // 2] = 1.0
    temperatures, coins = 0.3 + torch.rand(40, 1, generator=rng), torch.rand(40, generator=rng)
    coins[:2] = torch.tensor([0.0, 1 - 2**-24])
    q, index, probability = proposed(propose, logits, temperatures, coins, device)
    expected = (logits.double() / temperatures.double()).softmax(1)
    torch.testing.assert_close(q.double(), expected, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(probability.double(), expected.amax(1), rtol=1e-5, atol=0)
    total = expected.cumsum(1)
    for row, (token, coin) in enumerate(zip(index.tolist(), coins.tolist(), strict=True)):
        assert q[row, token] > 0
        assert total[row, token] > coin - 1e-6
        assert total[row, token] - expected[row, token] <= coin + 1e-6


@KERNELS
def test_what_is_no_number(propose: Propose, device: str) -> None:
    """It is never drawn, beside infinity nothing else is, and where there is nothing token 0 is certain."""
    known = 2 * SMALL + 5
    logits = torch.zeros(6, known)
    logits[0, 7:] = NAN
    logits[1, SMALL + 1] = INF
    logits[2] = -INF
    logits[3] = NAN
    logits[4, :SMALL] = -INF
    logits[5, 3] = 1e30
    coins = torch.full((6,), 0.999)
    q, index, probability = proposed(propose, logits, torch.full((6, 1), 1e-4), coins, device)
    torch.testing.assert_close(q.sum(1), torch.ones(6))
    assert index.tolist() == [6, SMALL + 1, 0, 0, known - 1, 3]
    assert (q[range(6), index] > 0).all()
    assert (q[2:4, 0] == 1).all()
    torch.testing.assert_close(probability, torch.tensor([1 / 7, 1.0, 0.0, 0.0, 1 / (known - SMALL), 1.0]))


def test_without_a_gpu_the_reference_runs() -> None:
    """The function for callers."""
    q, index, probability = torch.empty(1, 2), torch.empty(1, dtype=torch.int64), torch.empty(1)
    draft_proposal(torch.tensor([[0.0, 0.0]]), torch.ones(1, 1), torch.tensor([0.6]), q, index, probability)
    assert (q.tolist(), index.tolist(), probability.tolist()) == ([[0.5, 0.5]], [1], [0.5])
