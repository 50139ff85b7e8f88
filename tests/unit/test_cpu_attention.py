"""Attention of speculative decoding on the CPU against softmax written out, one query at a time, in float64."""

from __future__ import annotations

import pytest
import torch

from tessera_kernels.cpu.attention import PagedKV, Step, draft_attention, verify_attention

HEADS, KV_HEADS, SIZE, SCALING = 4, 2, 8, 0.3
SEQ_LENS = (5, 1, 9)


class Cache:
    """A KV cache of random values whose requests own scattered slots."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.keys, self.values = self.random(200, KV_HEADS, SIZE), self.random(200, KV_HEADS, SIZE)
        self.table = torch.randperm(200, generator=self.rng).view(5, 40).int()
        self.rows = torch.tensor([3, 0, 4])

    def random(self, *shape: int) -> torch.Tensor:
        """Standard normal values."""
        return torch.randn(*shape, generator=self.rng)

    @property
    def kv(self) -> PagedKV:
        """What both functions take."""
        return PagedKV(self.keys, self.values, self.table, self.rows, torch.tensor(SEQ_LENS))

    def expected(self, request: int, query: torch.Tensor, columns: list[int]) -> torch.Tensor:
        """Attention ``[Hq, D]`` of one query over these positions of a request."""
        slots = [int(self.table[self.rows[request], column]) for column in columns]
        heads = []
        for head in range(HEADS):
            keys, values = (cache[slots, head * KV_HEADS // HEADS].double() for cache in (self.keys, self.values))
            weights = (SCALING * keys @ query[head].double()).softmax(0)
            heads.append(weights @ values)
        return torch.stack(heads).float()


@pytest.fixture(params=range(4))
def cache(request: pytest.FixtureRequest) -> Cache:
    """One for each seed."""
    return Cache(request.param)


def test_chains_cut_to_length(cache: Cache) -> None:
    """Each drafted token sees what is accepted, those before it and itself; padding rows stay zero."""
    lens = [4, 1, 3]
    query = cache.random(sum(lens) + 2, HEADS, SIZE)
    found = verify_attention(query, cache.kv, torch.tensor(lens), None, SCALING)
    token = 0
    for request, drafted in enumerate(lens):
        for step in range(drafted):
            seen = list(range(SEQ_LENS[request] + step + 1))
            torch.testing.assert_close(found[token], cache.expected(request, query[token], seen))
            token += 1
    assert not found[token:].any()


@pytest.mark.parametrize("lens", [[4, 4, 4], [2, 4, 1]])
def test_trees(cache: Cache, lens: list[int]) -> None:
    """Each drafted token sees what is accepted and what its row of the mask allows."""
    masks = [torch.rand(n, n, generator=cache.rng) < 0.5 for n in lens]
    for mask in masks:
        mask.fill_diagonal_(fill_value=True)
    query = cache.random(sum(lens), HEADS, SIZE)
    flat = torch.cat([mask.flatten() for mask in masks])
    found = verify_attention(query, cache.kv, torch.tensor(lens), flat, SCALING)
    token = 0
    for request, mask in enumerate(masks):
        accepted = SEQ_LENS[request]
        for row in mask:
            seen = [*range(accepted), *(accepted + int(node) for node in row.nonzero())]
            torch.testing.assert_close(found[token], cache.expected(request, query[token], seen))
            token += 1


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("step", [0, 2])
def test_draft_steps(cache: Cache, topk: int, step: int) -> None:
    """A branch sees what is accepted and its own tokens so far, none of another branch."""
    steps = 4
    query = cache.random(len(SEQ_LENS) * topk, HEADS, SIZE)
    found = draft_attention(query, cache.kv, Step(topk, steps, step), SCALING)
    for request, accepted in enumerate(SEQ_LENS):
        for branch in range(topk):
            first = accepted + branch * steps
            seen = [*range(accepted), *range(first, first + step + 1)]
            token = request * topk + branch
            torch.testing.assert_close(found[token], cache.expected(request, query[token], seen))
