"""Where top-k, top-p and min-p cut: the Triton kernel and its torch reference against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits, sampling_cutoffs
from tessera_kernels.triton.accept import sampling_cutoffs as kernel
from tessera_kernels.triton.device import chunk_softmax
from tessera_kernels.triton.device.chunk_softmax import CHUNK
from tessera_testing.examples import several

SMALL = 32
POISON = 1e30
BOTH = {"triton": kernel.sampling_cutoffs_triton, "torch": sampling_cutoffs.reference}
KERNELS = pytest.mark.parametrize("compute_cutoffs", BOTH.values(), ids=BOTH)
Operator = Callable[..., None]


@pytest.fixture(params=[SMALL, SMALL // 8], ids=["room", "no room"])
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Plain loops over large vocabularies take long. With room for the candidates of most rows, and of few."""
    monkeypatch.setattr(chunk_softmax, "CHUNK", SMALL)
    monkeypatch.setattr(kernel, "CAPACITY", request.param)
    monkeypatch.setattr(kernel, "BLOCK", SMALL)


def expected_tokens(row: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The first k, no more than it takes to have the share of all, and none that is too unlikely beside the first.

    With all that are as likely as the last.
    """
    order = sorted(range(len(row)), key=lambda token: -row[token])
    weights = [math.exp((row[token] - row[order[0]]) / temperature) for token in order]
    shares = [0.0, *accumulate(weight / sum(weights) for weight in weights)]
    nucleus = [token for token, before in zip(order, shares, strict=False) if before < top_p or top_p == 1]
    likely = [token for token, weight in zip(order, weights, strict=True) if weight >= min_p]
    least = max(row[order[min(top_k, len(row)) - 1]], row[nucleus[-1]], row[likely[-1]])
    return {token for token in order if row[token] >= least and row[token] > -math.inf}


@KERNELS
@settings(several, max_examples=6)
@given(
    bs=st.integers(1, 3),
    width=st.sampled_from([1, 3]),
    vocabulary=st.sampled_from([3, SMALL, 2 * SMALL + 20]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_as_a_plain_loop_has_it(
    compute_cutoffs: Operator,
    device: str,
    small: None,
    bs: int,
    width: int,
    vocabulary: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """The same tokens, by each request's own limits; rows of padding are left as they are."""
    rng = torch.Generator().manual_seed(seed)
    begins = [0, *accumulate(torch.randint(1, width + 1, (bs,), generator=rng).tolist())]
    rows = begins[-1]
    logits = torch.full((rows + seed % 3, vocabulary + seed % 2), float("nan"))[:, :vocabulary]
    logits.copy_(3 * torch.randn(logits.shape, generator=rng) + (seed % 5) * 7 - 14)
    logits.copy_(logits.to(dtype))
    logits[:, seed % vocabulary] = (-math.inf, 0.0, -0.0)[seed % 3]
    temperatures = 0.3 + torch.rand(bs, 1, generator=rng)
    top_ks = torch.randint(1, vocabulary + 1, (bs,), generator=rng, dtype=torch.int32)
    top_ps = 0.05 + 0.9 * torch.rand(bs, generator=rng)
    top_ks[seed % bs], top_ps[seed // 7 % bs] = (1, 2, 2**30)[seed % 3], (1.0, 0.5, 1e-6)[seed // 3 % 3]
    min_ps = torch.rand(bs, generator=rng)
    min_ps[seed // 11 % bs] = (0.0, 1.0, 1e-9)[seed // 5 % 3]
    if seed % 4 == 0:  # it alone cuts
        top_ks.fill_(2**30)
        top_ps.fill_(1.0)
    cutoffs = torch.full((len(logits),), POISON, device=device)
    indptr = torch.tensor([*begins, rows], dtype=torch.int32, device=device)
    limits = SamplingLimits(*(one.to(device) for one in (temperatures, top_ks, top_ps, min_ps)))
    compute_cutoffs(logits.to(device, dtype), indptr, limits, width, cutoffs)
    assert (cutoffs[rows:] == POISON).all()
    for request, (begin, end) in enumerate(pairwise(begins)):
        limits_of_request = (
            float(temperatures[request]),
            int(top_ks[request]),
            float(top_ps[request]),
            float(min_ps[request]),
        )
        for place in range(begin, end):
            row = logits[place].double().tolist()
            found = {token for token, logit in enumerate(row) if logit >= float(cutoffs[place]) and logit > -math.inf}
            assert found == expected_tokens(row, *limits_of_request)


@KERNELS
def test_ties_stay_and_one_is_left(compute_cutoffs: Operator, device: str) -> None:
    """A greedy request in a batch that samples; several that are as likely; no limit at all."""
    vocabulary = CHUNK + 7
    logits = torch.zeros((7, vocabulary), device=device)
    logits[:, [5, CHUNK + 2]] = 9.0
    logits[1:, 5] = 9.5
    top_ks = torch.tensor([1, 1, 2, 2**30, 2**30, 2**30, 2**30], dtype=torch.int32, device=device)
    top_ps = torch.tensor([1.0, 1.0, 0.1, 1e-3, 1.0, 1.0, 1.0], device=device)
    min_ps = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5], device=device)
    warm = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 1.3], device=device)
    cutoffs = torch.full((7,), POISON, device=device)
    indptr = torch.arange(8, dtype=torch.int32, device=device)
    compute_cutoffs(logits, indptr, SamplingLimits(warm, top_ks, top_ps, min_ps), 1, cutoffs)
    assert cutoffs.tolist()[:5] == [9.0, 9.5, 9.5, 9.5, -math.inf]
    assert [int((row >= cutoff).sum()) for row, cutoff in zip(logits, cutoffs, strict=True)][5:] == [1, 2]


@KERNELS
def test_logits_that_are_not_numbers(compute_cutoffs: Operator, device: str, small: None) -> None:
    """It ends, whatever they are."""
    logits = torch.zeros((4, SMALL + 3), device=device)
    logits[0], logits[1, 3:], logits[2], logits[3, 7] = math.nan, math.nan, -math.inf, math.inf
    top_ks, half = torch.full((4,), 3, dtype=torch.int32, device=device), torch.full((4,), 0.5, device=device)
    cutoffs = torch.full((4,), POISON, device=device)
    indptr = torch.arange(5, dtype=torch.int32, device=device)
    compute_cutoffs(logits, indptr, SamplingLimits(half, top_ks, half, half), 1, cutoffs)
    assert (cutoffs != POISON).all()


def test_without_a_gpu_the_reference_runs() -> None:
    """The function for callers."""
    cutoffs = torch.zeros(1)
    limits = SamplingLimits(torch.ones(1), torch.tensor([2], dtype=torch.int32), torch.ones(1), torch.zeros(1))
    sampling_cutoffs(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([0, 1], dtype=torch.int32), limits, 1, cutoffs)
    assert cutoffs.tolist() == [2.0]
