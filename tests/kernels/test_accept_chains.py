"""Acceptance of chains from packed logits: the Triton kernels and their torch reference against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.ops.accept.accept_chains import (
    AcceptedChains,
    ChainSampling,
    Observation,
    accept_chains,
)
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.observe_acceptance import observe_acceptance
from tessera_kernels.triton.accept.accept_chains import accept_chains_triton
from tessera_kernels.triton.device import chunk_softmax
from tessera_testing.examples import several

SMALL = 64
POISON = -(2**30)
BOTH = {"triton": accept_chains_triton, "torch": accept_chains.reference}
KERNELS = pytest.mark.parametrize("accept", BOTH.values(), ids=BOTH)
Accept = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, ChainSampling | None, AcceptedChains, Observation | None], None
]


def poisoned(bs: int, width: int, device: str) -> AcceptedChains:
    """Outputs in which nothing is right yet."""
    outputs = AcceptedChains.create(bs, width, torch.device(device))
    for output in outputs:
        output.fill_(POISON)
    return outputs


def sampled_after(p: list[float], rejected: int | None, q: list[float] | None, coin: float) -> int:
    """Inverse of the cumulative probabilities, without the rejected token, or without what was proposed."""
    left = [0.0 if token == rejected else chance for token, chance in enumerate(p)]
    if q is not None:
        left = p if rejected is None else [max(own - proposed, 0.0) for own, proposed in zip(p, q, strict=True)]
        left = left if sum(left) > 0 else p
    wanted = coin * sum(left)
    return next(token for token, total in enumerate(accumulate(left)) if total > wanted)


def one_chain(
    rows: list[list[float]],
    chain: list[int],
    coins: list[float] | None,
    last_coin: float,
    temperature: float,
    cutoffs: list[float],
    proposals: list[list[float]] | None,
) -> list[int]:
    """What the target makes of one chain: its accepted draft tokens, and one token more."""
    found: list[int] = []
    for depth, row in enumerate(rows):
        draft = chain[depth + 1] if depth + 1 < len(rows) else None
        if coins is None:
            token = row.index(max(row))
            found.append(token)
            if token != draft:
                return found
            continue
        sampled = [logit if logit >= cutoffs[depth] else -math.inf for logit in row]
        weights = [math.exp((logit - max(row)) / temperature) for logit in sampled]
        p = [weight / sum(weights) for weight in weights]
        q = None if proposals is None else [*proposals, p][depth]  # after the last one nothing is proposed
        if draft is not None and coins[depth] * (1.0 if q is None else q[draft]) < p[draft]:
            found.append(draft)
            continue
        return [*found, sampled_after(p, draft, q, last_coin)]
    return found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain loops over large vocabularies take long."""
    monkeypatch.setattr(chunk_softmax, "CHUNK", SMALL)


@KERNELS
@several
@given(
    bs=st.integers(1, 5),
    width=st.sampled_from([2, 3, 4, 8, 16]),
    vocabulary=st.sampled_from([3, 50, SMALL, 2 * SMALL + 30]),
    how=st.sampled_from(["greedy", "sampled", "proposed", "mapped"]),
    seed=st.integers(0, 2**31),
)
def test_as_a_plain_loop_has_it(
    accept: Accept, device: str, small_chunks: None, bs: int, width: int, vocabulary: int, how: str, seed: int
) -> None:
    """Tokens, places and lengths, of chains that end at every depth; what is behind the accepted rows is blank.

    Mapped: the draft knows some of the target's tokens alone, by other numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, width + 1, (bs,), generator=rng)
    begins = [0, *accumulate(lens.tolist())]
    qo_indptr = torch.tensor([*begins, begins[-1]], dtype=torch.int32, device=device)
    # Few tokens are likely, and their logits are whole numbers: some are equal.
    logits = torch.full((begins[-1] + seed % 3, vocabulary + seed % 2), float("nan"))[:, :vocabulary]
    logits.copy_(torch.randint(-30, 0, logits.shape, generator=rng))
    likely = torch.randint(vocabulary, (len(logits), 3), generator=rng)
    logits.scatter_(1, likely, torch.randint(-2, 3, likely.shape, generator=rng).float())
    logits[:, seed % vocabulary] = -math.inf
    chains = torch.randint(vocabulary, (bs, width), generator=rng)
    for request, (begin, end) in enumerate(pairwise(begins)):  # most draft tokens are likely ones
        for depth in range(1, end - begin):
            chains[request, depth] = logits[begin + depth - 1].topk(2).indices[int(torch.rand(1, generator=rng) > 0.8)]
    temperatures = 0.2 + torch.rand(bs, 1, generator=rng)
    coins, last_coins = torch.rand(bs, width, generator=rng), torch.rand(bs, generator=rng)
    # Of every third world nothing is cut off, else all but the likeliest, or what is below a likely one.
    cutoffs = (None, logits.amax(1), logits.gather(1, likely[:, :1]).squeeze(1))[seed % 3]
    moved = ChainSampling(temperatures.to(device), coins.to(device), last_coins.to(device))
    if cutoffs is not None:
        moved = moved._replace(cutoffs=cutoffs.to(device))
    # Whole numbers again, so that some proposals are the target's very probabilities or never come.
    proposals = torch.randint(-3, 3, (bs, width - 1, vocabulary), generator=rng).float()
    if how == "mapped":
        known = torch.randperm(vocabulary, generator=rng)[: max(1, vocabulary // 2)]
        unknown = torch.ones(vocabulary, dtype=torch.bool).index_fill(0, known, value=False)
        proposals.masked_fill_(unknown, -math.inf)
        draft_ids = torch.full((vocabulary,), -1, dtype=torch.int32)
        draft_ids[known] = torch.arange(len(known), dtype=torch.int32)
    proposals = proposals.mul(3.0).softmax(2)
    if how == "proposed":
        moved = moved._replace(proposals=proposals.to(device))
    elif how == "mapped":
        of_known = proposals[..., known].contiguous().to(device)
        moved = moved._replace(proposals=of_known, draft_ids=draft_ids.to(device))
    sampling = None if how == "greedy" else moved
    outputs = poisoned(bs, width, device)
    accept(logits.to(device), qo_indptr, chains.to(device), sampling, outputs, None)

    for request, (begin, end) in enumerate(pairwise(begins)):
        expected = one_chain(
            logits[begin:end].double().tolist(),
            chains[request].tolist(),
            None if how == "greedy" else coins[request].tolist(),
            float(last_coins[request]),
            float(temperatures[request]),
            [-math.inf] * (end - begin) if cutoffs is None else cutoffs[begin:end].tolist(),
            proposals[request].tolist() if how in ("proposed", "mapped") else None,
        )
        blank = width - len(expected)
        first = request * width
        assert outputs.tokens[first : first + width].tolist() == expected + [0] * blank
        assert outputs.accept_index[request].tolist() == [*range(first, first + len(expected)), *[-1] * blank]
        assert int(outputs.accept_lens[request]) == len(expected)


@KERNELS
def test_thresholds(accept: Accept, device: str) -> None:
    """A draft token likely enough is accepted whatever the coin; probabilities are divided by the other one."""
    logits = torch.tensor([[0.6, 0.4], [0.5, 0.5]], device=device).log()
    qo_indptr, chains = torch.tensor([0, 2], dtype=torch.int32, device=device), torch.tensor([[0, 1]], device=device)
    one, coins = torch.ones(1, device=device), torch.full((1, 2), 0.7, device=device)
    half = torch.full((1,), 0.5, device=device)
    for single, total, length in ((1.0, 1.0, 1), (0.39, 1.0, 2), (0.41, 1.0, 1), (1.0, 0.5, 2), (1.0, 0.6, 1)):
        outputs = poisoned(1, 2, device)
        accept(logits, qo_indptr, chains, ChainSampling(one, coins, half, single, total), outputs, None)
        assert int(outputs.accept_lens[0]) == length


@KERNELS
def test_what_cannot_come_is_not_accepted(accept: Accept, device: str) -> None:
    """A greedy request in a batch that samples has one token with any probability: no coin takes another."""
    logits = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]], device=device)
    qo_indptr, nothing = torch.tensor([0, 2], dtype=torch.int32, device=device), torch.zeros((1, 2), device=device)
    for drafted, tokens in ((0, [1, 0]), (1, [1, 0])):
        chains, outputs = torch.tensor([[0, drafted]], device=device), poisoned(1, 2, device)
        sampling = ChainSampling(torch.ones(1, device=device), nothing, nothing[:, 0])
        accept(logits, qo_indptr, chains, sampling, outputs, None)
        assert (outputs.tokens.tolist(), outputs.accept_lens.tolist()) == (tokens, [1 + drafted])


@KERNELS
def test_a_coin_at_the_end_of_the_line(accept: Accept, device: str) -> None:
    """The greatest coin takes the last token that can come, not one that cannot; no coin takes the rejected one."""
    size = chunk_softmax.CHUNK
    vocabulary = size + 5
    logits = torch.full((2, vocabulary), -math.inf, device=device)
    logits[:, [7, size - 1, size + 1]] = torch.tensor([0.0, 9.0, -9.0], device=device)
    qo_indptr = torch.tensor([0, 2], dtype=torch.int32, device=device)
    chains = torch.tensor([[0, size - 1]], device=device)
    one = torch.ones(1, device=device)
    greatest = torch.nextafter(one, torch.zeros(1, device=device))
    for last, token in ((torch.zeros(1, device=device), 7), (greatest, size + 1)):
        outputs = poisoned(1, 2, device)
        sampling = ChainSampling(one, torch.ones((1, 2), device=device), last, 2.0)
        accept(logits, qo_indptr, chains, sampling, outputs, None)
        assert outputs.tokens.tolist() == [token, 0]


@KERNELS
@several
@given(bs=st.integers(1, 5), width=st.sampled_from([2, 3, 6]), seed=st.integers(0, 2**31))
def test_it_learns_what_observing_does(
    accept: Accept, device: str, small_chunks: None, bs: int, width: int, seed: int
) -> None:
    """The same counts and offsets as of lengths that are known: requests without a draft, NaN, deeper tables."""
    rng = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, width + 1, (bs,), generator=rng)
    qo_indptr = torch.cat([torch.zeros(1), lens.cumsum(0)]).int().to(device)
    logits = torch.randint(0, 3, (int(lens.sum()), 3), generator=rng).float().to(device)  # every third draft is right
    chains = torch.randint(3, (bs, width), generator=rng).to(device)
    confidence = torch.rand(bs, width + 2, generator=rng)[:, : width - 1]
    confidence[seed % bs, 0] = (math.nan, -1.0, 0.5)[seed % 3]
    requests = torch.randperm(9, generator=rng)[:bs].to(device)
    table = torch.randn(width - 1 + seed % 2, 8, generator=rng)
    models = [AcceptanceModel.create(torch.linspace(0.1, 0.9, 7), table, 9, device) for _ in range(2)]
    outputs = poisoned(bs, width, device)
    accept(logits, qo_indptr, chains, None, outputs, Observation(confidence.to(device), requests, models[0]))
    observe_acceptance.reference(confidence.to(device), requests, lens.to(device), outputs.accept_lens, models[1])
    counts, known = (model.counts for model in models)
    assert torch.equal(counts[:2], known[:2])
    assert (counts - known).abs().max() <= bs  # predictions: each survival is rounded once
    torch.testing.assert_close(models[0].offsets, models[1].offsets)


@KERNELS
@pytest.mark.parametrize("sampled", [False, True])
def test_logits_that_are_not_numbers(accept: Accept, device: str, small_chunks: None, sampled: bool) -> None:
    """Tokens stay in the vocabulary, and lengths within what was verified: an id beyond would end the server."""
    vocabulary = SMALL + 3
    logits = torch.zeros((8, vocabulary), device=device)
    logits[0] = math.nan
    logits[1, SMALL:] = math.nan
    logits[2, 5] = math.nan
    logits[3] = -math.inf
    logits[4] = math.inf
    logits[5, 9] = math.inf
    logits[6, :SMALL] = -math.inf
    qo_indptr = torch.arange(5, dtype=torch.int32, device=device) * 2
    chains = torch.full((4, 2), vocabulary - 1, device=device)
    coins = torch.full((4, 2), 0.99, device=device)
    sampling = ChainSampling(torch.ones(4, device=device), coins, coins[:, 0]) if sampled else None
    outputs = poisoned(4, 2, device)
    accept(logits, qo_indptr, chains, sampling, outputs, None)
    assert ((outputs.tokens >= 0) & (outputs.tokens < vocabulary)).all()
    assert ((outputs.accept_lens >= 1) & (outputs.accept_lens <= 2)).all()


def test_without_a_gpu_the_reference_runs() -> None:
    """The function for callers."""
    outputs = poisoned(1, 2, "cpu")
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    accept_chains(logits, torch.tensor([0, 2], dtype=torch.int32), torch.tensor([[0, 1]]), None, outputs)
    assert outputs.tokens.tolist() == [1, 0]
    assert outputs.accept_lens.tolist() == [2]
