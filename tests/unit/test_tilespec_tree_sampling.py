"""Cutting draft trees does not change what is sampled: chi-squared tests on a small vocabulary, against the target.

Trees are ordered, shared out, laid out, packed and spread by what serves. Two things are written here, for many
requests at once. The draft, as SGLang grows trees (``select_top_k_tokens``). And, as SGLang's CPU engine only takes the
arg-max, the rule of ``tree_speculative_sampling_target_only``: one coin goes through the children of a node and takes
the first at which the sum of their probabilities reaches it; if there is none, the target without them is sampled.
Where a tree ends, or is cut, the target is sampled as it is.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tessera.tilespec.calibration import Calibration, bin_edges
from tessera.tilespec.tree_scores import TreeScores
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows, pack_verify
from tessera_kernels.ops.verify.scatter_verify import scatter_verify
from tessera_patches.tilespec.draft.trees import order_by_path_score, tree_scores
from tessera_patches.tilespec.verify.prune import prune_trees
from tessera_testing.chances import chi_squared

VOCABULARY, TOPK, DEPTHS, NODES, OUTPUT = 4, 2, 3, 7, 3
REQUESTS = 40_000
ROWS = torch.arange(REQUESTS)
Candidates = tuple[torch.Tensor, torch.Tensor]
"""Those of a `tessera_patches.tilespec.step.Step`."""


class EqualStandIns(TreeScores):
    """Says of requests without a draft that all their first tokens are 0: a rule that is known to be biased."""

    def mark_undrafted(self, topk_p: torch.Tensor, topk_index: torch.Tensor) -> None:
        """As the right rule, but for the tokens."""
        super().mark_undrafted(topk_p, topk_index)
        topk_index.zero_()


class World:
    """A target whose next token depends on the last one, and on the parity of all tokens before and its position.

    The last two are known to a draft tree by its mask and its positions alone.

    Args:
        share: of the drafted tokens, how many are verified.
        scores_class: what orders nodes and shares tokens out.
        peeks: whether nothing is verified of a tree whose best first token its coin would reject: a rule that is known
            to be biased.

    Attributes:
        tokens: a start and OUTPUT tokens of each request, ``[REQUESTS, 1 + OUTPUT]``.
        accepted_of: how often so many nodes (column) of a tree of so many (row) were accepted, the root included.
    """

    def __init__(self, share: float, scores_class: type[TreeScores] = TreeScores, *, peeks: bool = False) -> None:
        self.rng = torch.Generator().manual_seed(1)
        self.p = 0.1 + 0.6 * (1.5 * self.normal(2, VOCABULARY, VOCABULARY)).softmax(2)
        self.tokens_verified = REQUESTS + int(share * (NODES - 1) * REQUESTS)
        self.peeks = peeks
        table = torch.from_numpy(Calibration(NODES - 1, trees=True).logits())
        model = AcceptanceModel.create(torch.from_numpy(bin_edges()), table, REQUESTS, "cpu")
        self.scores = scores_class(REQUESTS, NODES - 1, "cpu", model)
        self.accepted_of = torch.zeros(NODES + 1, DEPTHS + 2, dtype=torch.int64)
        self.tokens = torch.zeros(REQUESTS, 1 + OUTPUT, dtype=torch.int64)
        self.tokens[:, 0] = ROWS % VOCABULARY
        self.length = torch.ones_like(ROWS)
        for _ in range(OUTPUT):
            self.step()

    def normal(self, *size: int) -> torch.Tensor:
        """Normally distributed."""
        return torch.randn(*size, generator=self.rng, dtype=torch.float64)

    def draft(self, last: torch.Tensor) -> tuple[Candidates, torch.Tensor]:
        """Trees, and their tokens ``[n, NODES]``. It resembles the target, for each request in another way.

        A quarter of the requests, others in each step, went through a plain step before.
        """
        q = (self.p.log().mean(0) + 0.7 * self.normal(REQUESTS, VOCABULARY, VOCABULARY)).softmax(2).float()
        path, tokens = q[ROWS, last].topk(TOPK)
        undrafted = slice(int(self.length.sum()) % 4, None, 4)
        self.scores.mark_undrafted(path[undrafted], tokens[undrafted])
        scores, candidates = [path.unsqueeze(1)], [tokens]
        parents = [torch.arange(-1, TOPK).expand(REQUESTS, -1)]
        for depth in range(1, DEPTHS):
            chances, following = q[ROWS.unsqueeze(1), tokens].topk(TOPK)
            scores.append(path.unsqueeze(2) * chances)
            candidates.append(following.flatten(1))
            path, best = scores[-1].flatten(1).topk(TOPK)
            tokens = candidates[-1].gather(1, best)
            parents.append(best + TOPK * TOPK * (depth - 1) + TOPK)
        with tree_scores.set(self.scores):
            continued, selected, drafted = order_by_path_score(_never, scores, candidates, parents, NODES)
        return (continued, selected), torch.cat([last.unsqueeze(1), drafted], 1)

    def verify(self, nodes: torch.Tensor, candidates: Candidates, plan: VerifyPlan) -> tuple[torch.Tensor, Any]:
        """The target's probabilities ``[n, NODES, V]`` after each token of the trees, and their links."""
        links = torch.empty(3, REQUESTS, NODES, dtype=torch.int64).unbind()
        names = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
        laid = SimpleNamespace(**dict(zip(names, links, strict=True)), topk=TOPK, spec_steps=DEPTHS)
        laid.positions = torch.empty(REQUESTS * NODES, dtype=torch.int64)
        mask_indptr = prune_trees(candidates, laid, self.length - 1, plan, SimpleNamespace(verify_mask=None))

        padded = VerifyRows.with_new_locations(nodes.flatten(), laid.positions)
        nowhere = KVSlots(torch.zeros(1, NODES, dtype=torch.int32), torch.zeros_like(ROWS), torch.zeros_like(ROWS))
        lens = plan.verify_lens[:REQUESTS].long()
        packed = VerifyRows(*torch.empty(3, int(lens.sum()), dtype=torch.int64).unbind())
        pack_verify(padded, nowhere, plan.qo_indptr, packed)

        # What attention does: a row of the mask for each packed row.
        request = ROWS.repeat_interleave(lens)
        width = lens[request]
        begin = mask_indptr[request] + (torch.arange(len(request)) - plan.qo_indptr[request]) * width
        column = torch.arange(NODES)
        seen = (column < width.unsqueeze(1)) & laid.custom_mask[begin.unsqueeze(1) + column.clamp(max=NODES - 1)]
        sums = self.before()[request] + (nodes[request] * seen).sum(1)
        logits = self.p[(sums + packed.positions) % 2, packed.tokens].log()

        spread = torch.empty(REQUESTS * NODES, VOCABULARY, dtype=torch.float64)
        scatter_verify(logits, plan.qo_indptr, REQUESTS, spread, 0)
        return spread.view(REQUESTS, NODES, VOCABULARY).softmax(2), laid

    def before(self) -> torch.Tensor:
        """Sum of all tokens but the last."""
        return self.tokens.cumsum(1)[ROWS, self.length - 1] - self.last()

    def last(self) -> torch.Tensor:
        """The last token."""
        return self.tokens[ROWS, self.length - 1]

    def step(self) -> None:
        """Draft, cut, verify; more tokens than are looked at are forgotten."""
        candidates, nodes = self.draft(self.last())
        coins = torch.rand(REQUESTS, NODES, generator=self.rng, dtype=torch.float64)
        plan = self.scores.allocate(REQUESTS, NODES - 1, ROWS, self.tokens_verified)
        if self.peeks:
            root = self.p[(self.before() + self.last() + self.length - 1) % 2, self.last()]
            plan.verify_lens[:REQUESTS][coins[:, 0] > root[ROWS, nodes[:, 1]]] = 1
            plan.qo_indptr[1:] = plan.verify_lens.cumsum(0)
        p, laid = self.verify(nodes, candidates, plan)
        sampled, path = self.accept(p, nodes, laid, coins)
        accepted = (path >= 0).sum(1)
        self.accepted_of.view(-1).index_add_(
            0, plan.verify_lens[:REQUESTS] * (DEPTHS + 2) + accepted, torch.ones_like(ROWS)
        )
        accept_index = torch.where(path >= 0, path + NODES * ROWS.unsqueeze(1), -1).int()
        self.scores.observe_paths(REQUESTS, NODES - 1, ROWS, plan, accept_index)
        for column in range(DEPTHS + 1):
            here = (column < accepted) & (self.length <= OUTPUT)
            self.tokens[here, self.length[here]] = sampled[here, path[here, column]]
            self.length += here

    def accept(
        self, p: torch.Tensor, nodes: torch.Tensor, laid: Any, coins: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The token after each accepted node ``[n, NODES]``, and the accepted nodes ``[n, DEPTHS + 1]``, then -1."""
        sampled = torch.full((REQUESTS, NODES), -1)
        path = torch.full((REQUESTS, DEPTHS + 1), -1)
        path[:, 0] = 0
        node, going, weights = torch.zeros_like(ROWS), torch.ones_like(ROWS, dtype=torch.bool), p[:, 0].clone()
        for depth in range(1, DEPTHS + 1):
            child = laid.retrieve_next_token[ROWS, node].where(going, -1)
            found, reached = torch.full_like(ROWS, -1), torch.zeros(REQUESTS, dtype=torch.float64)
            for _ in range(TOPK):
                there = child >= 0
                token = nodes[ROWS, child]
                reached += p[ROWS, node, token].where(there, 0.0)
                taken = there & (coins[ROWS, node] <= reached)
                found = child.where(taken, found)
                rejected = there & ~taken
                weights[rejected, token[rejected]] = 0.0
                child = laid.retrieve_next_sibling[ROWS, child].where(rejected, -1)
            going = found >= 0
            sampled[going, node[going]] = nodes[going, found[going]]
            path[:, depth] = found
            node = found.where(going, node)
            weights = torch.where(going.unsqueeze(1), p[ROWS, node], weights)
        sampled[ROWS, node] = torch.multinomial(weights, 1, generator=self.rng).squeeze(1)
        return sampled, path

    def p_value(self) -> float:
        """Pearson's chi-squared test of start and outputs together against the target's own distribution."""
        law, places = torch.full((VOCABULARY,), 1 / VOCABULARY, dtype=torch.float64), self.tokens[:, 0]
        sums = last = torch.arange(VOCABULARY)
        for column in range(1, 1 + OUTPUT):
            law = (law.unsqueeze(1) * self.p[(sums + column - 1) % 2, last]).flatten()
            last = torch.arange(VOCABULARY).repeat(len(sums))
            sums = sums.repeat_interleave(VOCABULARY) + last
            places = places * VOCABULARY + self.tokens[:, column]
        found = torch.bincount(places, minlength=len(law))
        return chi_squared(found, law * REQUESTS, known=VOCABULARY)  # how often each start came was no chance


def _never(*_: object) -> None:
    raise AssertionError("the stock order of nodes")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.85])
def test_cutting_trees_keeps_the_distribution(share: float) -> None:
    """Whatever the draft's confidences leave of each tree, also of those that nobody drafted; learning goes on."""
    world = World(share)
    assert world.p_value() > 1e-3
    widths = world.accepted_of.sum(1)
    assert (widths > REQUESTS / 100).sum() >= 3  # trees of several sizes
    assert world.accepted_of[2:NODES, 2:].sum() > REQUESTS / 10  # drafts were accepted from cut ones


def test_a_cut_by_the_outcome_is_found() -> None:
    """Negative control: where verification is saved on what its own coins would reject, the target is another one."""
    assert World(0.85, peeks=True).p_value() < 1e-12


def test_equal_stand_ins_are_found() -> None:
    """Negative control: siblings of one token would count it twice, which is why the real stand-ins differ."""
    assert World(0.85, EqualStandIns).p_value() < 1e-12
