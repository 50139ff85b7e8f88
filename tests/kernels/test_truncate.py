"""Probabilities cut by top-k and top-p against plain loops: SGLang's operators on a GPU, elsewhere their torch twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.truncate import truncate


def one_row(p: list[float], top_k: int | None, top_p: float | None) -> list[float]:
    """The first k, then as many as it takes to have the share; ties of the last one stay."""
    for limit in (top_k, top_p):
        if limit is None:
            continue
        ordered, kept, share = sorted(p, reverse=True), 0, 0.0
        while kept < len(p) and (kept < limit if limit is top_k else share < limit):
            share += ordered[kept]
            kept += 1
        left = [chance if chance >= ordered[kept - 1] else 0.0 for chance in p]
        p = [chance / sum(left) for chance in left]
    return p


@given(
    rows=st.integers(1, 4),
    vocabulary=st.sampled_from([3, 50, 700]),
    cut_k=st.booleans(),
    cut_p=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_as_a_plain_loop_has_it(device: str, rows: int, vocabulary: int, cut_k: bool, cut_p: bool, seed: int) -> None:
    """Each row by its own limits; a k beyond the vocabulary and a p of 1 keep all."""
    rng = torch.Generator().manual_seed(seed)
    p = (3 * torch.randn(rows, vocabulary, generator=rng)).softmax(1)
    top_ks = torch.randint(1, vocabulary, (rows,), generator=rng, dtype=torch.int32)
    top_ks[seed % rows] = (1, 2**30)[seed % 2]
    top_ps = 0.05 + 0.9 * torch.rand(rows, generator=rng)
    found = truncate(p.to(device), top_ks.to(device) if cut_k else None, top_ps.to(device) if cut_p else None)
    limits = [(int(k) if cut_k else None, float(t) if cut_p else None) for k, t in zip(top_ks, top_ps, strict=True)]
    expected = [one_row(row, *limit) for row, limit in zip(p.double().tolist(), limits, strict=True)]
    torch.testing.assert_close(found.double().cpu(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("top_k", "top_p"), [(1, None), (None, 1e-6), (1, 0.5)])
def test_one_token_is_left(device: str, top_k: int | None, top_p: float | None) -> None:
    """A greedy request in a batch that samples: its token has probability 1, and nothing else has any."""
    p = torch.tensor([[0.2, 0.5, 0.3]], device=device)
    ks = None if top_k is None else torch.tensor([top_k], dtype=torch.int32, device=device)
    ps = None if top_p is None else torch.tensor([top_p], device=device)
    assert truncate(p, ks, ps).tolist() == [[0.0, 1.0, 0.0]]


def test_all_are_kept(device: str) -> None:
    """SGLang's limits of those who ask for none."""
    p = torch.tensor([[0.2, 0.5, 0.3]], device=device)
    ks, ps = torch.tensor([2**30], dtype=torch.int32, device=device), torch.ones(1, device=device)
    torch.testing.assert_close(truncate(p, ks, ps), p)
