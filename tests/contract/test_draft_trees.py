"""Draft trees in our order against SGLang's own: the same nodes, their tokens and their parents."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera.tilespec.calibration import Calibration, bin_edges
from tessera.tilespec.tree_scores import TreeScores
from tessera_kernels import cpu
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel

BATCH, TOPK, NODES = 5, 3, 9


@pytest.fixture(scope="module")
def modules() -> tuple[Any, Any]:
    """SGLang's functions and ours: imported late, for SGLang takes seconds."""
    cpu.enable()
    from sglang.srt.speculative import eagle_utils

    from tessera_patches.tilespec.draft import trees as tilespec_trees

    return eagle_utils, tilespec_trees


def a_draft(steps: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """What a draft worker collects: scores, tokens and parents of the candidates of each step."""
    rng = torch.Generator().manual_seed(steps)
    shapes = [(BATCH, TOPK if step else 1, TOPK) for step in range(steps)]
    scores = [torch.rand(shape, generator=rng) * 0.5**step for step, shape in enumerate(shapes)]
    tokens = [torch.randint(1000, (BATCH, groups * TOPK), generator=rng) for _, groups, _ in shapes]
    parents = [torch.randint(50, (BATCH, TOPK + (step == 0)), generator=rng) for step in range(steps)]
    return scores, tokens, parents


@pytest.mark.parametrize(("steps", "nodes"), [(1, TOPK), (2, NODES), (4, NODES)])
def test_the_same_nodes_in_another_order(modules: tuple[Any, Any], steps: int, nodes: int) -> None:
    """The best path first; without our draft worker SGLang's order is left as it is."""
    sglang, ours = modules
    draft = a_draft(steps)
    parents, index, tokens = sglang.organize_draft_results(*draft, nodes + 1)
    table = torch.from_numpy(Calibration(nodes, trees=True).logits())
    model = AcceptanceModel.create(torch.from_numpy(bin_edges()), table, BATCH, "cpu")
    scores = TreeScores(BATCH, nodes, "cpu", model)
    with ours.tree_scores.set(scores):
        found = ours.order_by_path_score(sglang.organize_draft_results, *draft, nodes + 1)
    everything = torch.cat([part.flatten(1) for part in draft[0]], 1)
    best = everything.gather(1, found[1])
    assert torch.equal(best, everything.sort(1, descending=True).values[:, :nodes])
    assert torch.equal(scores._confidence, best)
    assert torch.equal(found[0], parents)
    again = found[1].argsort(1)
    assert torch.equal(found[1].gather(1, again), index)
    assert torch.equal(found[2].gather(1, again), tokens)
    outside = ours.order_by_path_score(sglang.organize_draft_results, *draft, nodes + 1)
    assert all(torch.equal(a, b) for a, b in zip(outside, (parents, index, tokens), strict=True))
