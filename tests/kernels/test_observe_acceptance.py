"""Updates of the acceptance model by verified chains: Triton and the torch reference against plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import PREDICTION_UNIT
from tessera_kernels.ops.learning.observe_acceptance import (
    OFFSET_DECAY,
    OFFSET_LIMIT,
    OFFSET_RATE,
    observe_acceptance,
)
from tessera_kernels.triton.learning.observe_acceptance import observe_acceptance_triton
from tessera_testing.examples import several

NAN = float("nan")
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
            counts[2, depth, place] += int(survival / PREDICTION_UNIT + 0.5)
            if depth >= accept_lens[b]:
                continue  # not tested
            success = depth < accept_lens[b] - 1
            counts[0, depth, place] += 1
            counts[1, depth, place] += int(success)
            gradient += int(success) - chance
        moved = OFFSET_DECAY * float(offsets[request]) + OFFSET_RATE * gradient
        after[request] = min(max(moved, -OFFSET_LIMIT), OFFSET_LIMIT)

    observe: Any
    for observe in (observe_acceptance_triton, observe_acceptance.reference):
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
