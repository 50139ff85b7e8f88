"""Path scores of draft trees, and the order of nodes by them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.tilespec.scores import NO_DRAFT
from tessera.tilespec.tree_scores import UNDRAFTED, TreeScores
from tessera_testing.examples import several
from tessera_testing.path_scores import model_of


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
