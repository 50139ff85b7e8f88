"""TileSpec of draft trees on the CPU: what is chosen, what is learnt, what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.tilespec import cache
from tessera.tilespec.cache import Profile, ProfileUnusable
from tessera.tilespec.calibration import FIT_INTERVAL, HALF_LIFE, Calibration, bin_edges
from tessera.tilespec.candidates import DraftShape
from tessera.tilespec.decider import Decider
from tessera.tilespec.nominal import nominal
from tessera.tilespec.trace import Trace
from tessera.tilespec.tree_scores import UNDRAFTED, TreeScores
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel

NODES = 7
REQUESTS = 64
SHAPE = DraftShape(forwards=3, topk=4, nodes=NODES + 1)


class Served:
    """A decider and the scores of trees, without an engine."""

    def __init__(self, trace: Path | None = None) -> None:
        table = torch.from_numpy(Calibration(NODES, trees=True).logits())
        model = AcceptanceModel.create(torch.from_numpy(bin_edges()), table, REQUESTS, "cpu")
        known = Calibration(NODES, trees=True)
        self.scores = TreeScores(REQUESTS, NODES, "cpu", model)
        costs = nominal(SHAPE.drafted, REQUESTS)
        self.decider = Decider(costs, self.scores, (known, known.copy()), "cpu", trace)
        self.rng = torch.Generator().manual_seed(1)

    def step(self, bs: int, first: float, accepted: float) -> tuple[int, int]:
        """One decode step; nodes of depth 1 that are this sure, of which the first is right so often.

        Returns drafted nodes of a request, and tokens that were verified in all.
        """
        choice = self.decider.choose(bs, bs * 100)
        if choice.steps:
            requests = torch.arange(bs)
            shares = torch.tensor([1.0, 0.1, 0.05, 0.01]).expand(bs, 1, 4)
            later = torch.zeros(bs, 4, 4)
            self.scores.order([first * shares, later], NODES)
            plan = self.scores.allocate(bs, NODES, requests, choice.tokens)
            right = (torch.rand(bs, generator=self.rng) < accepted) & (plan.verify_lens[:bs] > 1)
            roots = torch.arange(bs) * (NODES + 1)
            accept_index = torch.stack([roots, torch.where(right, roots + 1, -1)], 1).int()
            self.scores.observe_paths(bs, NODES, requests, plan, accept_index)
            self.decider.on_verify(NODES)
        return choice.steps, choice.tokens


def test_it_drafts_whole_trees_or_none() -> None:
    """SGLang's steps and widths of what is chosen from, for trees and for chains."""
    assert SHAPE.drafted == [0, 7]
    assert [SHAPE.state(drafted) for drafted in SHAPE.drafted] == [(0, 1), (3, 8)]
    chains = DraftShape(3, 1, 4)
    assert [chains.state(drafted) for drafted in chains.drafted] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_few_requests_verify_trees_and_many_what_is_sure() -> None:
    """One request whose best node is always right drafts and verifies; of many only the sure nodes are verified."""
    served = Served()
    alone = [served.step(1, 0.97, 1.0) for _ in range(4 * FIT_INTERVAL)]
    assert np.mean([steps for steps, _ in alone[-FIT_INTERVAL:]]) > 0.9 * NODES
    many = [served.step(12, 0.97, 1.0) for _ in range(4 * FIT_INTERVAL)]
    drafted = [tokens for steps, tokens in many[-FIT_INTERVAL:] if steps]
    assert len(drafted) > FIT_INTERVAL / 2
    assert 12 * 2 <= np.mean(drafted) < 12 * 6


def test_trees_that_are_never_right_are_left(tmp_path: Path) -> None:
    """However sure the draft is; the trace can be read again."""
    served = Served(tmp_path / "trace.jsonl")
    steps = [served.step(8, 0.97, 0.0)[0] for _ in range(8 * FIT_INTERVAL)]
    assert np.mean(steps[-FIT_INTERVAL:]) < 1
    assert sum(1 for _ in Trace(tmp_path / "trace.jsonl").records()) > FIT_INTERVAL


def test_requests_without_a_draft_come_last_and_teach_nothing() -> None:
    """After a plain step: first nodes are as likely as each other, less than any draft says, and other tokens."""
    served = Served()
    first, tokens = torch.tensor([[0.5, 0.2, 0.1, 0.1], [0.0] * 4]), torch.zeros(2, 4, dtype=torch.int64)
    served.scores.mark_undrafted(first[1:], tokens[1:])
    assert first[1].tolist() == [UNDRAFTED] * 4
    assert tokens.tolist() == [[0] * 4, [0, 1, 2, 3]]
    scores = [first.unsqueeze(1), torch.zeros(2, 4, 4)]
    index = served.scores.order(scores, NODES)
    assert index.tolist() == [list(range(NODES))] * 2
    plan = served.scores.allocate(2, NODES, torch.arange(2), 2 + 5)
    assert plan.verify_lens[:2].tolist() == [6, 1]
    assert int(plan.histogram[0].sum()) == NODES
    whole = served.scores.allocate(2, NODES, torch.arange(2), 2 * (NODES + 1))
    served.scores.observe_paths(2, NODES, torch.arange(2), whole, torch.tensor([[0, 1], [8, -1]], dtype=torch.int32))
    assert served.scores.model.counts[:2].sum((1, 2)).tolist() == [NODES, 1]
    assert served.scores.model.offsets[1] == 0


def test_a_profile_of_trees_has_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back; as one of chains it would be damaged."""
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    known = Calibration(NODES, trees=True)
    profile = Profile({"topk": 4}, nominal(SHAPE.drafted, 4), (known, known.copy()))
    file = cache.save(profile)
    assert [one.trials.shape for one in cache.read(file).calibrations] == [(1, 32)] * 2
    with pytest.raises(ProfileUnusable, match="are not 7 x 32 counts"):
        cache.read(cache.save(replace(profile, facts={"topk": 1})))


def test_counts_of_a_tree_fade_by_steps_and_not_by_nodes() -> None:
    """A half-life is as many trials of each node as chains have of a depth."""
    subject = Calibration(NODES, trees=True)
    counts = np.zeros((3, 1, 32), np.int32)
    counts[:2, 0, 5] = HALF_LIFE * NODES
    subject.update(counts)
    subject.update(counts * 2)
    assert subject.trials[0, 5] == pytest.approx(HALF_LIFE * NODES * 1.5)
    assert subject.mean() == pytest.approx([1.0] * NODES, abs=0.01)
