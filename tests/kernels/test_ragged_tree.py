"""The layout of draft trees: Triton and the torch reference against plain loops over random trees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.cpu.draft_tree import build_tree_kernel_efficient_cpu
from tessera_kernels.ops.draft.ragged_tree import RaggedTree, ragged_tree
from tessera_kernels.triton.draft.ragged_tree import ragged_tree_triton
from tessera_testing.examples import several

SHAPES = [(1, 1, 2), (1, 7, 8), (4, 1, 4), (2, 3, 6), (4, 3, 9), (3, 5, 16)]
JUNK = 10**6


class Trees:
    """Random draft trees, as SGLang's draft worker describes them, of which each request keeps a part."""

    def __init__(self, seed: int, topk: int, depth: int, nodes: int, batch: int = 3) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.topk, self.depth, self.nodes, self.batch = topk, depth, nodes, batch
        self.parent_list = torch.full((batch, 1 + (depth - 1) * topk if depth > 1 else 0), -1)
        self.chosen = [self._grow(b, self.integer(1, nodes)) for b in range(batch)]
        self.verify_lens = torch.tensor([1 + len(chosen) for chosen in self.chosen], dtype=torch.int32)
        self.seq_lens = torch.tensor([self.integer(1, 9) for _ in range(batch)])
        self.selected = torch.full((batch, nodes - 1), JUNK)
        for b, chosen in enumerate(self.chosen):
            self.selected[b, : len(chosen)] = torch.tensor(chosen, dtype=torch.int64)

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return int(torch.randint(low, high + 1, (1,), generator=self.rng))

    def _grow(self, b: int, lens: int) -> list[int]:
        topk, first = self.topk, 0
        for group in range(1, self.parent_list.shape[1]):  # group 0 continues the root, others the level before
            level = (group - 1) // topk
            low, high = (0, topk) if level == 0 else (first, first + topk * topk)
            self.parent_list[b, group] = self.integer(low, high - 1)
            if group % topk == 0:
                first = (1 + level * topk) * topk
        chosen: list[int] = []
        candidates = topk + (self.depth - 1) * topk * topk
        while len(chosen) < lens - 1:
            candidate = self.integer(0, candidates - 1)
            if candidate not in chosen and self.continued(b, candidate) in (None, *chosen):
                chosen.append(candidate)
        return sorted(chosen) if self.integer(0, 1) else chosen  # by their index, or only behind what they continue

    def continued(self, b: int, candidate: int) -> int | None:
        """The candidate that this one continues; None is the root."""
        group = candidate // self.topk
        return int(self.parent_list[b, group]) if group else None

    def parent(self, b: int, node: int) -> int:
        """The node that a node continues."""
        before = self.continued(b, self.chosen[b][node - 1])
        return 0 if before is None else self.chosen[b].index(before) + 1

    def path(self, b: int, node: int) -> list[int]:
        """The nodes from ``node`` up to the root, both included."""
        return [node] if node == 0 else [node, *self.path(b, self.parent(b, node))]

    def expected(self, b: int) -> tuple[list[int], list[int], list[int]]:
        """First children, next siblings and depths of a request's nodes."""
        count = 1 + len(self.chosen[b])
        parents = [-1, *(self.parent(b, node) for node in range(1, count))]
        child = [next((c for c in range(count) if parents[c] == node), -1) for node in range(count)]
        sibling = [
            next((c for c in range(node + 1, count) if node and parents[c] == parents[node]), -1)
            for node in range(count)
        ]
        return child, sibling, [len(self.path(b, node)) - 1 for node in range(count)]


@pytest.mark.parametrize("prefix", [True, False])
@several
@given(st.sampled_from(SHAPES), st.integers(0, 2**31))
def test_ragged_tree(device: str, prefix: bool, shape: tuple[int, int, int], seed: int) -> None:
    """Links and positions of the kept nodes, -1 and 0 behind them; the mask has exactly the kept cells."""
    trees = Trees(seed, *shape)
    lens = trees.verify_lens.tolist()
    widths = [n + (length if prefix else 0) for n, length in zip(lens, trees.seq_lens.tolist(), strict=True)]
    sizes = [n * width for n, width in zip(lens, widths, strict=True)]
    mask_indptr = torch.tensor([sum(sizes[:b]) for b in range(trees.batch)])
    inputs = (trees.parent_list, trees.selected, trees.seq_lens, trees.verify_lens, mask_indptr)
    build: Any
    for build in (ragged_tree_triton, ragged_tree.reference):
        links = torch.full((3, trees.batch, trees.nodes), JUNK, device=device)
        positions = torch.full((trees.batch * trees.nodes,), JUNK, device=device)
        mask = torch.ones(sum(sizes) + 5, dtype=torch.bool, device=device)
        tree = RaggedTree._make([*links.unbind(), positions, mask])
        moved = inputs if build is ragged_tree.reference else tuple(t.to(device) for t in inputs)
        tree = RaggedTree(*(t.cpu() for t in tree)) if build is ragged_tree.reference else tree
        build(*moved, trees.topk, trees.depth, prefix, tree)
        check(trees, RaggedTree(*(t.cpu() for t in tree)), sizes)


def check(trees: Trees, tree: RaggedTree, sizes: list[int]) -> None:
    """Everything that was written, request by request."""
    positions = tree.positions.view(trees.batch, -1)
    *masks, behind = tree.mask.split([*sizes, 5])
    assert behind.all()
    for b, n in enumerate(trees.verify_lens.tolist()):
        rest = [-1] * (trees.nodes - n)
        child, sibling, steps = trees.expected(b)
        assert tree.node_index[b].tolist() == [b * trees.nodes + node for node in range(n)] + rest
        assert tree.first_child[b].tolist() == child + rest
        assert tree.next_sibling[b].tolist() == sibling + rest
        length = int(trees.seq_lens[b])
        assert positions[b].tolist() == [length + step for step in steps] + [0] * len(rest)
        rows = masks[b].view(n, -1)
        before = rows.shape[1] - n
        assert rows[:, :before].all()
        for node in range(n):
            assert rows[node, before:].nonzero().flatten().tolist() == sorted(trees.path(b, node))


def test_a_node_without_its_parent_and_the_whole_tree(device: str) -> None:
    """With every node kept it is SGLang's operator, also for a node whose parent was not chosen."""
    parent_list, selected = torch.tensor([[-1, 0, 0, 1]]), torch.tensor([[0, 6]])
    seq_lens, lens = torch.tensor([5]), torch.tensor([3], dtype=torch.int32)
    build_all: Any = build_tree_kernel_efficient_cpu
    expected = torch.full((3, 1, 3), -1)
    positions, mask = torch.empty(3, dtype=torch.int64), torch.ones(9, dtype=torch.bool)
    build_all(parent_list, selected, seq_lens, mask, positions, *expected, 2, 3, 3, 1)
    inputs = (parent_list, selected, seq_lens, lens, torch.zeros(1, dtype=torch.int64))
    links = torch.full((3, 1, 3), JUNK, device=device).unbind()
    cells = torch.ones(9, dtype=torch.bool, device=device)
    tree = RaggedTree._make([*links, torch.full((3,), JUNK, device=device), cells])
    build: Any = ragged_tree_triton
    build(*(t.to(device) for t in inputs), 2, 3, False, tree)
    for found, value in zip(tree, (*expected, positions, mask), strict=True):
        assert torch.equal(found.cpu(), value)
