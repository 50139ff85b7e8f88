"""Penalties of each token of a draft against plain loops over all tokens before it."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.tilespec.penalties import Penalties, RecentTokens

VOCABULARY = 7


def one_row(row: list[float], before: list[int], frequency: float, presence: float, repetition: float) -> list[float]:
    """The logits after these tokens, as SGLang's documentation has penalties."""
    found = []
    for token, logit in enumerate(row):
        times = before.count(token)
        value = logit - frequency * times - presence * (times > 0)
        scale = repetition if times else 1.0
        found.append(value * scale if value < 0 else value / scale)
    return found


def random_penalties(bs: int, rng: torch.Generator) -> Penalties:
    """Of requests that ask for everything, or for nothing."""
    requested = torch.randint(2, (4, bs, 1), generator=rng)
    return Penalties(
        torch.zeros(bs, VOCABULARY),
        torch.zeros(bs, dtype=torch.int64),
        torch.randint(1, 9, (bs,), generator=rng),
        requested[0] * torch.rand(bs, 1, generator=rng),
        requested[1] * torch.randn(bs, 1, generator=rng),
        1 + requested[2] * torch.rand(bs, 1, generator=rng),
        requested[3, :, 0] * torch.randint(1, 9, (bs,), generator=rng),
        torch.randint(VOCABULARY, (bs, 2), generator=rng),
        torch.tensor([[-math.inf, 0.0]]).repeat(bs, 1),
    )


@settings(max_examples=60)
@given(bs=st.integers(1, 4), width=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_every_token_of_a_draft(bs: int, width: int, seed: int) -> None:
    """Tokens that the host counted, in lots; those that only the device knows; and the drafts before a token.

    Requests come and go meanwhile, and rows of padding lie behind.
    """
    rng = torch.Generator().manual_seed(seed)
    penalties = random_penalties(bs, rng)
    outputs = [torch.randint(VOCABULARY, (int(n),), generator=rng) for n in torch.randint(1, 9, (bs,), generator=rng)]
    most = torch.randint(width + 1, (bs,), generator=rng).tolist()
    unknown = [min(n, len(own)) for n, own in zip(most, outputs, strict=True)]
    counted = [own[: len(own) - n] for own, n in zip(outputs, unknown, strict=True)]
    for half in range(2):
        lots = [own[half::2] for own in counted]
        lens = torch.tensor([len(lot) for lot in lots])
        table = torch.full((bs, 9), 1)
        for row, lot in zip(table, lots, strict=True):
            row[: len(lot)] = lot
        penalties = penalties.with_tokens(table, lens)
    requests = torch.arange(bs)
    if seed % 2:
        penalties = penalties.select(torch.arange(bs).flip(0)).concat(random_penalties(2, rng))
        penalties = penalties.select(torch.arange(bs).flip(0))
    recent = RecentTokens(bs, width + 1)
    recent.of(requests)
    last = torch.full((bs, width + 1), 0)
    lens = torch.tensor([min(width + 1, len(own)) for own in outputs])
    for row, own, length in zip(last, outputs, lens.tolist(), strict=True):
        row[:length] = own[len(own) - length :]
    recent.update(requests, last.int(), lens.int())

    anchors = torch.stack([own[-1] for own in outputs]).unsqueeze(1)
    tokens = torch.cat([anchors, torch.randint(VOCABULARY, (bs, width - 1), generator=rng)], 1)
    sizes = torch.randint(1, width + 1, (bs,), generator=rng).tolist()
    begins = [0, *accumulate(sizes)]
    rows = torch.randn(begins[-1] + 2, VOCABULARY, generator=rng)
    owners = torch.tensor([b for b, size in enumerate(sizes) for _ in range(size)] + [bs - 1] * 2)
    depths = torch.tensor([d for size in sizes for d in range(size)] + [width - 1] * 2)
    seq_lens = penalties.prompts + torch.tensor([len(own) for own in outputs]) - 1
    found = rows.clone()
    penalties.penalize_drafts(found, owners, depths, seq_lens, tokens, recent.of(requests))
    for place, (owner, depth) in enumerate(zip(owners.tolist()[:-2], depths.tolist()[:-2], strict=True)):
        before = [*outputs[owner].tolist(), *tokens[owner, 1 : depth + 1].tolist()]
        factors = [float(part[owner]) for part in (penalties.frequency, penalties.presence, penalties.repetition)]
        expected = one_row(rows[place].tolist(), before, *factors)
        if len(before) < int(penalties.min_new_tokens[owner]):
            expected[int(penalties.stops[owner, 0])] = -math.inf
        assert found[place].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    vary = (penalties.frequency != 0) | (penalties.presence != 0) | (penalties.repetition != 1)
    early = torch.tensor([len(own) for own in outputs]) < penalties.min_new_tokens
    assert penalties.depend_on_drafts(seq_lens).tolist() == (vary[:, 0] | early).tolist()


def test_the_token_after_a_prompt() -> None:
    """All tokens before it are known; logits of 16 bits are rounded once."""
    rng = torch.Generator().manual_seed(1)
    penalties = random_penalties(3, rng)._replace(
        repetition=torch.full((3, 1), 1.5), min_new_tokens=torch.tensor([0, 2, 3])
    )
    penalties = penalties.with_tokens(torch.tensor([[1, 1], [2, 3], [4, 5]]), torch.tensor([2, 2, 0]))
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(3, VOCABULARY, generator=rng).to(dtype)
        found = logits.clone()
        penalties.penalize(found)
        for place, before in enumerate([[1, 1], [2, 3], []]):
            factors = [float(part[place]) for part in (penalties.frequency, penalties.presence, penalties.repetition)]
            expected = one_row(logits[place].tolist(), before, *factors)
            if place == 2:
                expected[int(penalties.stops[2, 0])] = -math.inf
            assert found[place].tolist() == pytest.approx(expected, rel=1e-2 if dtype is torch.bfloat16 else 1e-5)
