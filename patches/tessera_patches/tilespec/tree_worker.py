"""The worker for trees, which are drafted as a whole or not at all, and verified up to any number of nodes."""

from __future__ import annotations

from typing import Any

import torch

from tessera.tilespec.tree_scores import TreeScores
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_patches.tilespec.draft.drafts import score_trees
from tessera_patches.tilespec.draft.trees import DraftTree
from tessera_patches.tilespec.worker import AdaptiveWorker


class AdaptiveTreeWorker(AdaptiveWorker):
    """A `AdaptiveWorker` for trees."""

    scores_class = TreeScores
    score_drafts = staticmethod(score_trees)
    _scores: TreeScores

    def _learn(self, verify_input: Any, requests: torch.Tensor, plan: VerifyPlan, _: Any) -> None:
        tree = DraftTree.of(verify_input)
        if tree is None or tree.accepted is None:
            raise RuntimeError("tessera: a tree was verified and nobody saw what was accepted; this is a bug")
        drafted = verify_input.draft_token_num - 1
        self._scores.observe_paths(len(requests), drafted, requests, plan, tree.accepted)
