"""Drafts of a batch into a pool: the Triton kernel and its reference against SGLang's indexed writes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera_kernels.ops.draft.stash_drafts import DraftRows, stash_drafts
from tessera_kernels.triton.draft.stash_drafts import MAX_COLUMNS, stash_drafts_triton

POOL = 140
several = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
batches = st.tuples(st.sampled_from([1, 2, 31, 130]), st.sampled_from([1, 3, 4]), st.integers(0, 2**31))
states_of = st.sampled_from([None, (torch.bfloat16, 64), (torch.float16, 1), (torch.float32, MAX_COLUMNS + 76)])


def drafts_of(
    rng: torch.Generator, n: int, topk: int, states: tuple[torch.dtype, int] | None, tokens: torch.dtype, device: str
) -> DraftRows:
    """Random rows."""
    hidden = None if states is None else torch.randn(n, states[1], generator=rng).to(states[0]).to(device)
    return DraftRows(
        torch.randint(0, 2**31 - 1, (n,), generator=rng).to(tokens).to(device),
        torch.rand(n, topk, generator=rng).to(device),
        torch.randint(0, 2**40, (n, topk), generator=rng).to(device),
        hidden,
    )


def copied(rows: DraftRows) -> DraftRows:
    """Tensors of their own."""
    return DraftRows._make(None if part is None else part.clone() for part in rows)


def same(a: DraftRows, b: DraftRows) -> bool:
    """Bit for bit."""
    pairs = zip(a, b, strict=True)
    return all(
        one is other or (one is not None and other is not None and torch.equal(one, other)) for one, other in pairs
    )


@several
@given(batches, states_of, st.sampled_from([torch.int32, torch.int64]))
def test_each_row_goes_to_its_request(
    device: str, batch: tuple[int, int, int], states: tuple[torch.dtype, int] | None, tokens: torch.dtype
) -> None:
    """Requests in any order, and all other rows of the pool as they were."""
    bs, topk, seed = batch
    rng = torch.Generator().manual_seed(seed)
    drafts = drafts_of(rng, bs, topk, states, tokens, device)
    pool = drafts_of(rng, POOL, topk, states, torch.int64, device)
    requests = torch.randperm(POOL, generator=rng)[:bs].to(device)
    expected = copied(pool)
    for kept, rows in zip(expected, drafts, strict=True):
        if kept is not None and rows is not None:
            kept[requests] = rows.to(kept.dtype)
    for stash in (stash_drafts_triton, stash_drafts.reference):
        found = copied(pool)
        stash(drafts, requests, found)
        assert same(found, expected)


@pytest.mark.parametrize("outside", [-1, POOL, 2**40])
def test_a_row_that_the_pool_has_not_is_left_out(device: str, outside: int) -> None:
    """Nothing is written for it, before the pool, behind it or at its end; its neighbours' are."""
    rng = torch.Generator().manual_seed(1)
    drafts = drafts_of(rng, 3, 4, (torch.float32, 8), torch.int32, device)
    around = drafts_of(rng, POOL + 2, 4, (torch.float32, 8), torch.int64, device)
    requests = torch.tensor([5, outside, 7], device=device)
    for stash in (stash_drafts_triton, stash_drafts.reference):
        found = copied(around)
        stash(drafts, requests, DraftRows._make(None if part is None else part[1:-1] for part in found))
        for kept, before, rows in zip(found, around, drafts, strict=True):
            expected = None if before is None else before.clone()
            if kept is not None and expected is not None and rows is not None:
                expected[torch.tensor([6, 8], device=device)] = rows[::2].to(kept.dtype)
                assert torch.equal(kept, expected)
