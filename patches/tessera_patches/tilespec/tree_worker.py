"""The worker for trees, which are drafted as a whole or not at all, and verified up to any number of nodes."""

from typing import Any

import torch

from tessera.tilespec.tree_scores import TreeScores
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_patches.tilespec.step import Step
from tessera_patches.tilespec.worker import AdaptiveWorker


class AdaptiveTreeWorker(AdaptiveWorker):
    """An `AdaptiveWorker` whose drafts are trees."""

    scores_class = TreeScores
    scores: TreeScores

    def _describe_drafts(self, step: Step, *_: Any) -> None:
        step.candidates = self._draft_worker.candidates

    def _learn(self, step: Step, plan: VerifyPlan, steps: int, requests: torch.Tensor, _: Any) -> None:
        if step.accepted is None:
            raise RuntimeError("tessera: a tree was verified and nobody saw what was accepted; this is a bug")
        self.scores.observe_paths(len(requests), steps, requests, plan, step.accepted)
