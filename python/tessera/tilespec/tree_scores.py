"""Path scores of draft trees, in descending order, so that each prefix of the nodes is a tree. Device tensors."""

import torch

from tessera.tilespec.scores import NO_DRAFT, Scores
from tessera_kernels.ops.learning.observe_tree import observe_tree
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify

UNDRAFTED = 2.0**-40
"""The probability of placeholders for first nodes. Above 0, so that scores still fall along paths, and below that of
any best token, which is at least one over the vocabulary size."""


class TreeScores(Scores):
    """The path scores of a step's nodes ``[bs, N - 1]``, descending, and the acceptance model that calibrates them.

    A path score is the product of the draft's probabilities from the root to a node.
    """

    def mark_undrafted(self, topk_p: torch.Tensor, topk_index: torch.Tensor) -> None:
        """See `tessera.tilespec.scores.Scores.mark_undrafted`.

        Siblings get different tokens: sampled acceptance would count an equal one twice.
        """
        topk_p.fill_(UNDRAFTED)
        topk_index.copy_(torch.arange(topk_index.shape[1], device=topk_index.device).expand_as(topk_index))

    def order(self, scores: list[torch.Tensor], nodes: int) -> torch.Tensor:
        """Store the best path scores of a draft, and return their candidates, int64 ``[bs, nodes]``, the best first.

        Ties go to the earlier candidate. A candidate comes after its parent, whose score is not less, so the first
        ``k`` nodes are a tree for each ``k``. NaN counts as 0. Runs inside captured graphs.

        Args:
            scores: path scores of the candidates of each draft step, float32 ``[bs, groups, topk]``.
            nodes: draft nodes of each request.
        """
        candidates = torch.cat(scores, dim=1).flatten(1).nan_to_num(0.0)
        best, index = candidates.sort(dim=1, descending=True, stable=True)
        best = best[:, :nodes]
        drafted = best[:, :1] > UNDRAFTED
        self._confidence[: best.shape[0], :nodes] = best.where(drafted, NO_DRAFT)
        return index[:, :nodes].contiguous()

    def allocate(self, bs: int, steps: int, requests: torch.Tensor, tokens: int) -> VerifyPlan:
        """Choose the nodes to verify: `tessera_kernels.ops.verify.allocate_verify.allocate_verify`, by paths."""
        plan = self._plan(bs)
        allocate_verify(self._drafted(bs, steps), requests, self.model, tokens, plan, paths=True)
        return plan

    def observe_paths(
        self, bs: int, steps: int, requests: torch.Tensor, plan: VerifyPlan, accept_index: torch.Tensor
    ) -> None:
        """Count the outcome of a step: `tessera_kernels.ops.learning.observe_tree.observe_tree`."""
        observe_tree(self._drafted(bs, steps), requests, plan.verify_lens, accept_index, self.model)
