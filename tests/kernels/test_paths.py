"""Draft trees by path scores: their order, what of them is verified, and what is learnt, against brute force."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.tilespec.scores import NO_DRAFT
from tessera.tilespec.tree_scores import UNDRAFTED, TreeScores
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT, PROMISED_UNIT
from tessera_kernels.ops.learning.observe_acceptance import OFFSET_KEPT, OFFSET_LIMIT, OFFSET_RATE
from tessera_kernels.ops.learning.observe_tree import observe_tree_torch
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify_torch
from tessera_kernels.triton.learning.observe_tree import observe_tree_triton
from tessera_kernels.triton.verify.allocate_verify import allocate_verify_triton

EDGES = [0.125, 0.25, 0.5, 0.625, 0.75, 0.875, 0.96875]  # exact in float32
REQUESTS = 48
several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
batches = st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 7, 15]), st.integers(0, 2**31))


def model_of(rng: torch.Generator, device: str) -> AcceptanceModel:
    """A table of one row that neither rises nor falls, and offsets."""
    model = AcceptanceModel.create(torch.tensor(EDGES), torch.randn(1, 8, generator=rng) * 2, REQUESTS, device)
    model.offsets.copy_(torch.randn(REQUESTS, generator=rng))
    return model


def scores_of(rng: torch.Generator, bs: int, nodes: int, undrafted: int) -> torch.Tensor:
    """Path scores in descending order, many alike and on the edges of bins; the first requests have no draft."""
    choice = torch.tensor([*EDGES, 0.0, 0.3, 1.0])
    scores = choice[torch.randint(0, len(choice), (bs, nodes), generator=rng)].sort(1, descending=True).values
    scores[:undrafted] = NO_DRAFT
    return scores


def chance(model: AcceptanceModel, score: float, request: int) -> float:
    """That the path is accepted."""
    place = sum(edge <= score for edge in EDGES)
    return 1 / (1 + math.exp(-float(model.logits[0, place]) - float(model.offsets[request])))


@several
@given(batches, st.floats(0, 1.2))
def test_allocation(device: str, batch: tuple[int, int, int], share: float) -> None:
    """The likeliest nodes of the whole batch, prefixes of each request's, whatever the table says."""
    bs, nodes, seed = batch
    rng = torch.Generator().manual_seed(seed)
    undrafted, slots = min(seed % 3, bs), bs + seed % 5
    model, scores = model_of(rng, device), scores_of(rng, bs, nodes, undrafted)
    requests = torch.randperm(REQUESTS, generator=rng)[:bs]
    tokens = bs + int(share * bs * nodes)
    allocate: Any
    for allocate in (allocate_verify_triton, allocate_verify_torch):
        plan = VerifyPlan.create(slots, nodes, nodes, device)
        plan.histogram.fill_(2**31 - 1)  # it wraps
        allocate(scores.to(device), requests.to(device), model, tokens, plan, paths=True)
        survival = plan.survival[:bs].cpu()
        for b, request in enumerate(requests.tolist()):
            least = 1.0 if b >= undrafted else 0.0
            for node in range(nodes):
                least = min(least, chance(model, float(scores[b, node]), request))
                assert math.isclose(float(survival[b, node]), least, rel_tol=1e-5)
        order = sorted((-p, node, b) for b, line in enumerate(survival.tolist()) for node, p in enumerate(line))
        lens = [1] * bs
        for _, _, b in order[: tokens - bs]:
            lens[b] += 1
        assert plan.verify_lens.tolist() == lens + [0] * (slots - bs)
        assert plan.qo_indptr.tolist() == [sum(lens[:b]) for b in range(slots + 1)]
        counts, sums = torch.zeros(2, nodes, HISTOGRAM_BINS, dtype=torch.float64)
        for line in survival[undrafted:].tolist():
            for node, p in enumerate(line):
                counts[node, min(int(p * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)] += 1
                sums[node, min(int(p * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)] += p
        added = (plan.histogram - (2**31 - 1)).cpu()
        assert torch.equal(added[0], counts.int())
        unit = HISTOGRAM_UNIT
        torch.testing.assert_close(added[1].double() * unit, sums, rtol=0, atol=bs * unit)


@several
@given(batches)
def test_observation(device: str, batch: tuple[int, int, int]) -> None:
    """Each verified node is a trial, each on the accepted path a success; counts and offsets as in a plain loop."""
    bs, nodes, seed = batch
    rng = torch.Generator().manual_seed(seed)
    undrafted = min(seed % 3, bs)
    scores = scores_of(rng, bs, nodes, undrafted)
    requests = torch.randperm(REQUESTS, generator=rng)[:bs]
    verify_lens = torch.randint(1, nodes + 2, (bs + 2,), generator=rng).int()
    accept_index = torch.full((bs, 4), -1, dtype=torch.int32)
    paths = []
    for b in range(bs):
        accepted = (torch.rand(int(verify_lens[b]) - 1, generator=rng) < 0.4).nonzero().flatten()[:3] + 1
        paths.append(accepted.tolist())
        accept_index[b, : 1 + len(accepted)] = b * (nodes + 1) + torch.tensor([0, *accepted.tolist()])
    observe: Any
    for observe in (observe_tree_triton, observe_tree_torch):
        model = model_of(torch.Generator().manual_seed(seed), device)
        model.counts.fill_(-2)
        counts, after = torch.full((3, 1, 8), -2, dtype=torch.int32), model.offsets.cpu().clone()
        for b, request in enumerate(requests.tolist()):
            gradient = 0.0
            for node in range(1, int(verify_lens[b]) if b >= undrafted else 1):
                score = float(scores[b, node - 1])
                place, succeeded = sum(edge <= score for edge in EDGES), node in paths[b]
                counts[0, 0, place] += 1
                counts[1, 0, place] += succeeded
                expected = chance(model, score, request)
                counts[2, 0, place] += int(expected / PROMISED_UNIT + 0.5)
                gradient += succeeded - expected
            moved = OFFSET_KEPT * float(after[request]) + OFFSET_RATE * gradient
            after[request] = min(max(moved, -OFFSET_LIMIT), OFFSET_LIMIT)
        observe(*(t.to(device) for t in (scores, requests, verify_lens, accept_index)), model)
        assert torch.equal(model.counts.cpu()[:2], counts[:2])
        assert (model.counts.cpu() - counts).abs().max() <= bs * nodes  # each rounded once
        torch.testing.assert_close(model.offsets.cpu(), after, rtol=1e-5, atol=1e-6)


class Draft:
    """A draft as SGLang's worker makes it: in each step the best ``topk`` of the candidates are continued."""

    def __init__(self, rng: torch.Generator, bs: int, topk: int, steps: int) -> None:
        sure = torch.tensor([1.0, 1.0, 0.5, 0.25, 0.0, float("nan")])  # what is continued surely ties with it
        self.scores: list[torch.Tensor] = []
        self.continued = torch.full((bs, topk), -1)  # by candidate
        beam = torch.ones(bs, 1)
        first = 0
        for step in range(steps):
            groups = topk if step else 1
            chances = sure[torch.randint(0, 5 + (step > 1), (bs, groups, topk), generator=rng)]
            chances = torch.full_like(chances, UNDRAFTED) if step == 0 and bs % 2 else chances
            candidates = beam.unsqueeze(2) * chances
            self.scores.append(candidates)
            beam, chosen = candidates.flatten(1).topk(topk)
            if step < steps - 1:
                self.continued = torch.cat([self.continued, (chosen + first).repeat_interleave(topk, 1)], 1)
            first += groups * topk


@several
@given(st.integers(1, 4), st.sampled_from([(2, 1, 2), (2, 4, 6), (4, 3, 8), (3, 5, 20)]), st.integers(0, 2**31))
def test_every_prefix_is_a_tree(device: str, bs: int, shape: tuple[int, int, int], seed: int) -> None:
    """With ties, zeros and what is not a number: no node comes before the one that it continues."""
    topk, steps, nodes = shape
    draft = Draft(torch.Generator().manual_seed(seed), bs, topk, steps)
    scores = TreeScores(8, nodes, device, model_of(torch.Generator(), device))
    index = scores.order([part.to(device) for part in draft.scores], nodes).cpu()
    for b, chosen in enumerate(index.tolist()):
        assert len(set(chosen)) == nodes
        for place, candidate in enumerate(chosen):
            assert int(draft.continued[b, candidate]) in (-1, *chosen[:place])
    noted = scores._confidence[:bs].cpu()
    everything = torch.cat([part.flatten(1) for part in draft.scores], 1).nan_to_num(0.0)
    best = everything.sort(1, descending=True).values[:, :nodes]
    drafted = best[:, :1] > UNDRAFTED
    assert bool(drafted.any()) or bs % 2 == 1
    assert torch.equal(noted, best.where(drafted, NO_DRAFT))
