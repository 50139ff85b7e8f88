"""What draft trees promise: nodes in the order of their path scores, so that every prefix is a tree. Device tensors."""

from __future__ import annotations

import torch

from tessera.tilespec.scores import NO_DRAFT, Scores
from tessera_kernels.ops.learning.observe_tree import observe_tree
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify

UNDRAFTED = 2.0**-40
"""The probability of first nodes that nobody drafted: above 0, so that scores still fall along paths, and below that of
every best token, which is at least one over the vocabulary."""


class TreeScores(Scores):
    """One step's path scores ``[bs, N - 1]``, in descending order, and the acceptance model that calibrates them.

    A path score is the product of the draft's probabilities from the root to a node.
    """

    def undraft(self, topk_p: torch.Tensor, topk_index: torch.Tensor) -> None:
        """See `tessera.tilespec.scores.Scores.undraft`.

        Siblings must differ from each other: where equal ones are sampled, the token would count twice.
        """
        topk_p.fill_(UNDRAFTED)
        topk_index.copy_(torch.arange(topk_index.shape[1], device=topk_index.device).expand_as(topk_index))

    def order(self, scores: list[torch.Tensor], nodes: int) -> torch.Tensor:
        """Note the best path scores of a draft and return where they are, int64 ``[bs, nodes]``, the best first.

        Of equal ones the earlier candidate comes first. A candidate comes behind the one that it continues, and its
        score is not greater: so the first ``k`` are a tree, whatever ``k`` is. What is not a number counts as 0. Runs
        inside a captured graph.

        Args:
            scores: of the candidates of each draft step, float32 ``[bs, groups, topk]``.
            nodes: drafted nodes to keep for each request.
        """
        candidates = torch.cat(scores, dim=1).flatten(1).nan_to_num(0.0)
        best, index = candidates.sort(dim=1, descending=True, stable=True)
        best = best[:, :nodes]
        drafted = best[:, :1] > UNDRAFTED
        self._confidence[: best.shape[0], :nodes] = best.where(drafted, NO_DRAFT)
        return index[:, :nodes].contiguous()

    def allocate(self, bs: int, steps: int, requests: torch.Tensor, tokens: int, slots: int = 0) -> VerifyPlan:
        """Whose nodes to verify: `tessera_kernels.ops.verify.allocate_verify.allocate_verify`, by paths."""
        plan = self._plan(max(bs, slots))
        allocate_verify(self._drafted(bs, steps), requests, self.model, tokens, plan, paths=True)
        return plan

    def observe_paths(
        self, bs: int, steps: int, requests: torch.Tensor, plan: VerifyPlan, accept_index: torch.Tensor
    ) -> None:
        """Learn from the outcome of a step: `tessera_kernels.ops.learning.observe_tree.observe_tree`."""
        observe_tree(self._drafted(bs, steps), requests, plan.verify_lens, accept_index, self.model)
