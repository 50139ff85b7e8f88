"""SGLang's draft workers, extended by the confidences of draft tokens and the path scores of trees."""

from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.utils import is_cuda

from tessera.tilespec.scores import Scores
from tessera.tilespec.tree_scores import TreeScores
from tessera_patches.core import calls
from tessera_patches.core.changes import Mixin, Tap
from tessera_patches.engine.attention import extend_backend
from tessera_patches.engine.batches import all_greedy, speculative_input
from tessera_patches.engine.options import samples_drafts, with_draft_tokens
from tessera_patches.tilespec.draft.chains import drafts_chain
from tessera_patches.tilespec.draft.first_tokens import FirstTokens, LastRowsExtend
from tessera_patches.tilespec.draft.proposals import RejectionSampledDrafts, confidence_sink
from tessera_patches.tilespec.draft.trees import tree_scores
from tessera_patches.tilespec.draft.vocabulary import ReducedVocabulary
from tessera_patches.tilespec.extend.offsets import fuse_extend


class AdaptiveDraftWorker(Mixin):
    """A draft worker with CUDA graphs of draft-extends for each number of draft tokens."""

    scores: Scores | TreeScores

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._constants: dict[int, tuple[Any, Any]] = {}
        super().__init__(*args, **kwargs)
        calls.count(type(self))

    def write_scores_to(self, scores: Scores | TreeScores) -> None:
        """Set where confidences are written; to be called before graphs are captured."""
        self.scores = scores
        self._constants.clear()  # SGLang knows now how many requests there may be

    def _capture_cuda_graphs(self) -> None:
        """Captures draft-extends with the width of the state; up to 0.5.17 SGLang has one for all states."""
        fuse_extend(extend_backend(self), self.draft_runner.model)
        # Forwards read the graph's buffers directly; SGLang would have each forward copy them first.
        no_copy = envs.SGLANG_EAGER_INPUT_NO_COPY.override(value=True)
        calls.count(AdaptiveDraftWorker)
        with no_copy, with_draft_tokens(self.draft_runner, self.speculative_num_draft_tokens):
            super()._capture_cuda_graphs()


class ChainDraftWorker(FirstTokens, AdaptiveDraftWorker, RejectionSampledDrafts, ReducedVocabulary):
    """A draft worker that writes the confidence of each draft token of a chain to `scores`.

    The confidence is the greatest probability of the token's distribution, also if the token was sampled: which tokens
    are verified must not depend on the sample. It is computed where the logits are, inside captured graphs; SGLang has
    1 in its place, unless it samples.
    """

    scores: Scores
    _topk1_parents_prealloc: Any
    _topk1_score_indices_prealloc: Any

    def _rebuild_topk1_chain_buffers(self) -> None:
        """Creates these constants once for each number of steps; SGLang does whenever the number changes."""
        if self.speculative_num_steps not in self._constants:
            super()._rebuild_topk1_chain_buffers()
            made = self._topk1_parents_prealloc, self._topk1_score_indices_prealloc
            self._constants[self.speculative_num_steps] = made
        constants = self._constants[self.speculative_num_steps]
        self._topk1_parents_prealloc, self._topk1_score_indices_prealloc = constants

    def draft_forward(self, forward_batch: Any) -> Any:
        """All forwards of a draft. The confidence of the first token comes with the batch."""
        drafts = speculative_input(forward_batch)
        self.scores.begin(drafts.topk_p)
        # SGLang organizes greater batches than it has constants for as trees.
        with drafts_chain.set(len(drafts.topk_p) <= len(self._topk1_parents_prealloc)):
            if is_cuda() or (samples_drafts() and not all_greedy(forward_batch)):
                with confidence_sink.set(self.scores.next_column):
                    return super().draft_forward(forward_batch)

            def add(output: Any) -> None:
                self.scores.add_logits(output.next_token_logits)

            with Tap(ChainDraftWorker, self.draft_runner, "forward", add):
                return super().draft_forward(forward_batch)


class TreeDraftWorker(LastRowsExtend, AdaptiveDraftWorker):
    """A draft worker whose tree nodes are in the order of their path scores.

    Attributes:
        candidates: the last drafts, as a `tessera_patches.tilespec.step.Step` has them.
    """

    scores: TreeScores
    candidates: tuple[torch.Tensor, torch.Tensor]
    _eager: Any

    def draft(self, batch: Any, **kwargs: Any) -> Any:
        """Also keeps the candidates, to prune the trees later."""
        with Tap(TreeDraftWorker, self.cuda_graph_runner, "execute") as replayed:
            verify_input = super().draft(batch, **kwargs)
        parents, selected, *_ = replayed.last or self._eager
        self.candidates = parents, selected
        return verify_input

    def draft_forward(self, forward_batch: Any) -> Any:
        with tree_scores.set(self.scores):
            self._eager = super().draft_forward(forward_batch)
        return self._eager
