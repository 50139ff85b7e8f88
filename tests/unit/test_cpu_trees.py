"""The CPU stand-ins for the token trees of speculative decoding, called as SGLang calls them, against plain loops."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tessera_kernels.cpu import ops

ops.register()
sgl_kernel = torch.ops.sgl_kernel
Ints = list[int]


@pytest.fixture(params=range(8))
def rng(request: pytest.FixtureRequest) -> torch.Generator:
    """A seeded generator; every test that takes it runs once for each seed."""
    return torch.Generator().manual_seed(request.param)


def randint(rng: torch.Generator, low: int, high: int, *size: int) -> torch.Tensor:
    """Return int64 values from ``low`` to ``high``, both included."""
    return torch.randint(low, high + 1, size, generator=rng)


class Trees:
    """Random draft trees as SGLang's draft worker describes them, and what is expected of them, node by node."""

    def __init__(self, rng: torch.Generator, topk: int, depth: int, nodes: int, batch: int = 3) -> None:
        self.topk, self.depth, self.nodes, self.batch = topk, depth, nodes, batch
        self.seq_lens = randint(rng, 1, 9, batch)
        groups = 1 + (depth - 1) * topk
        # Group 0 continues the root. The groups of level l continue candidates of level l - 1.
        self.parent_list = torch.full((batch, groups if depth > 1 else 0), -1)
        self.selected = torch.empty(batch, nodes - 1, dtype=torch.int64)
        self.parents = [self._grow(rng, b) for b in range(batch)]

    def _grow(self, rng: torch.Generator, b: int) -> Ints:
        first = 0
        for group in range(1, self.parent_list.shape[1]):
            level = (group - 1) // self.topk
            low, high = (0, self.topk) if level == 0 else (first, first + self.topk * self.topk)
            self.parent_list[b, group] = int(randint(rng, low, high - 1, 1))
            if group % self.topk == 0:
                first = (1 + level * self.topk) * self.topk
        candidates = self.topk + (self.depth - 1) * self.topk * self.topk
        chosen: Ints = []
        while len(chosen) < self.nodes - 1:
            candidate = int(randint(rng, 0, candidates - 1, 1))
            if candidate not in chosen and self._continues(b, candidate) in (None, *chosen):
                chosen.append(candidate)
        chosen.sort()
        self.selected[b] = torch.tensor(chosen, dtype=torch.int64)
        wanted = [self._continues(b, candidate) for candidate in chosen]
        return [-1] + [0 if parent is None else chosen.index(parent) + 1 for parent in wanted]

    def _continues(self, b: int, candidate: int) -> int | None:
        group = candidate // self.topk
        return int(self.parent_list[b, group]) if group else None

    def path(self, b: int, node: int) -> Ints:
        """Return the nodes from ``node`` up to the root, both included."""
        return [node] if node == 0 else [node, *self.path(b, self.parents[b][node])]

    def children(self, b: int, node: int) -> Ints:
        """Return the nodes whose parent is ``node``, ascending."""
        return [child for child in range(1, self.nodes) if self.parents[b][child] == node]

    def build(self, mask: torch.Tensor, mode: int) -> tuple[torch.Tensor, ...]:
        """Call the operator; return positions, indices, first children and next siblings."""
        positions = torch.empty(self.batch * self.nodes, dtype=torch.int64)
        links = torch.full((3, self.batch, self.nodes), -1)
        sgl_kernel.build_tree_kernel_efficient_cpu(
            self.parent_list,
            self.selected,
            self.seq_lens,
            mask,
            positions,
            *links,
            self.topk,
            self.depth,
            self.nodes,
            mode,
        )
        return positions, *links


SHAPES = [(1, 1, 2), (1, 4, 5), (4, 1, 4), (2, 3, 6), (4, 3, 9), (3, 5, 16)]


class TestTreeBuilding:
    """``build_tree_kernel_efficient_cpu``."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_links_and_positions(self, rng: torch.Generator, shape: tuple[int, int, int]) -> None:
        """First child and next siblings enumerate the children; a position is the sequence length plus the depth."""
        trees = Trees(rng, *shape)
        size = trees.batch * trees.nodes
        positions, index, child, sibling = trees.build(torch.ones(size * trees.nodes, dtype=torch.bool), 1)
        assert index.flatten().tolist() == list(range(size))
        for b in range(trees.batch):
            steps = [len(trees.path(b, node)) - 1 for node in range(trees.nodes)]
            depth_of = positions.view(trees.batch, -1)[b] - trees.seq_lens[b]
            assert depth_of.tolist() == steps
            for node in range(trees.nodes):
                family, following = trees.children(b, node), int(child[b, node])
                while family:
                    assert following == family.pop(0)
                    following = int(sibling[b, following])
                assert following == -1

    @pytest.mark.parametrize("shape", SHAPES)
    def test_mask_of_the_tree_alone(self, rng: torch.Generator, shape: tuple[int, int, int]) -> None:
        """A node attends to itself and its ancestors."""
        trees = Trees(rng, *shape)
        mask = torch.ones(trees.batch, trees.nodes, trees.nodes, dtype=torch.bool)
        trees.build(mask.view(-1), 1)
        for b in range(trees.batch):
            for node in range(trees.nodes):
                assert mask[b, node].nonzero().flatten().tolist() == sorted(trees.path(b, node))

    @pytest.mark.parametrize("filled", [True, False])
    def test_mask_with_prefix_writes_only_the_columns_of_the_tree(self, rng: torch.Generator, *, filled: bool) -> None:
        """The columns of the prefix stay as the caller filled them."""
        trees = Trees(rng, 2, 3, 6)
        widths = (trees.seq_lens + trees.nodes).tolist()
        mask = torch.full((sum(widths) * trees.nodes,), filled)
        trees.build(mask, 0)
        for b, part in enumerate(mask.split([width * trees.nodes for width in widths])):
            prefix, tree = part.view(trees.nodes, -1).split([widths[b] - trees.nodes, trees.nodes], dim=1)
            assert torch.all(prefix == filled)
            for node in range(trees.nodes):
                assert tree[node].nonzero().flatten().tolist() == sorted(trees.path(b, node))

    def test_node_without_its_parent_is_linked_to_nothing(self) -> None:
        """As in the Triton kernel: no parent links to it, and it attends to itself and the root."""
        # Candidate 6 belongs to group 3, which continues candidate 1; that one was not chosen.
        trees = SimpleNamespace(parent_list=torch.tensor([[-1, 0, 0, 1]]), selected=torch.tensor([[0, 6]]))
        mask, positions = torch.ones(9, dtype=torch.bool), torch.empty(3, dtype=torch.int64)
        index, child, sibling = torch.full((3, 1, 3), -1)
        sgl_kernel.build_tree_kernel_efficient_cpu(
            trees.parent_list, trees.selected, torch.tensor([5]), mask, positions, index, child, sibling, 2, 3, 3, 1
        )
        assert (child.tolist(), sibling.tolist()) == ([[1, -1, -1]], [[-1, -1, -1]])
        assert positions.tolist() == [5, 6, 6]
        assert mask.view(3, 3).tolist() == [[True, False, False], [True, True, False], [True, False, True]]

    def test_packed_mask_is_refused(self, rng: torch.Generator) -> None:
        """No CPU path of SGLang asks for one."""
        with pytest.raises(NotImplementedError, match="tree mask mode 2 has no CPU version: expected 0 or 1"):
            Trees(rng, 2, 2, 3).build(torch.ones(27, dtype=torch.bool), 2)


class TestAcceptance:
    """``verify_tree_greedy_cpu``."""

    @pytest.mark.parametrize("longest", [1, 3, 6])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_verify_tree_greedy(self, rng: torch.Generator, shape: tuple[int, int, int], longest: int) -> None:
        """The chain of fitting children; everything else in the outputs keeps its value."""
        trees = Trees(rng, *shape)
        size = trees.batch * trees.nodes
        _, *links = trees.build(torch.ones(size * trees.nodes, dtype=torch.bool), 1)
        # Few tokens, so that chains of every length are accepted.
        tokens = randint(rng, 0, 2, trees.batch, trees.nodes)
        targets = randint(rng, 0, 3, trees.batch, trees.nodes)
        predicts = torch.full((size + 2,), -7, dtype=torch.int32)
        accepted = torch.full((trees.batch, longest), -1, dtype=torch.int32)
        count = torch.empty(trees.batch, dtype=torch.int32)
        sgl_kernel.verify_tree_greedy_cpu(predicts, accepted, count, tokens, *links, targets)

        wanted = [-7] * (size + 2)
        for b in range(trees.batch):
            chain = [0]
            while len(chain) < longest:
                fitting = [n for n in trees.children(b, chain[-1]) if tokens[b, n] == targets[b, chain[-1]]]
                if not fitting:
                    break
                chain.append(fitting[0])
            for node in chain:
                wanted[b * trees.nodes + node] = int(targets[b, node])
            chain_index = [b * trees.nodes + node for node in chain]
            assert accepted[b].tolist() == chain_index + [-1] * (longest - len(chain))
            assert count[b] == len(chain) - 1
        assert predicts.tolist() == wanted


class TestReconstruction:
    """``reconstruct_indices_from_tree_mask_cpu``."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_same_links_as_the_masked_tree(self, rng: torch.Generator, shape: tuple[int, int, int]) -> None:
        """Building a tree gives a mask; the mask alone gives back the positions and links."""
        trees = Trees(rng, *shape)
        mask = torch.ones(trees.batch * trees.nodes * trees.nodes, dtype=torch.bool)
        expected = trees.build(mask, 1)
        found = torch.empty_like(expected[0]), *torch.empty(3, trees.batch, trees.nodes, dtype=torch.int64)
        sgl_kernel.reconstruct_indices_from_tree_mask_cpu(mask, trees.seq_lens, *found, trees.batch, trees.nodes)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    def test_node_that_sees_only_itself_is_linked_to_nothing(self) -> None:
        """The corpus pads small trees with such nodes."""
        mask = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool).flatten()
        positions, links = torch.empty(3, dtype=torch.int64), torch.empty(3, 1, 3, dtype=torch.int64)
        sgl_kernel.reconstruct_indices_from_tree_mask_cpu(mask, torch.tensor([4]), positions, *links, 1, 3)
        assert positions.tolist() == [4, 5, 4]
        assert links[:, 0].tolist() == [[0, 1, 2], [1, -1, -1], [-1, -1, -1]]
