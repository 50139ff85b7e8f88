"""SGLang's draft workers, which also note what each drafted token is worth."""

from __future__ import annotations

import contextlib
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.utils import is_cuda

from tessera.tilespec.scores import Scores
from tessera.tilespec.tree_scores import TreeScores
from tessera_patches.core.changes import Mixin, Tap, change_class, extend_class
from tessera_patches.tilespec.draft.chains import chaining, numbered, unlinked
from tessera_patches.tilespec.draft.first_tokens import Finding, Picking
from tessera_patches.tilespec.draft.proposals import Proposing, noted
from tessera_patches.tilespec.draft.trees import DraftTree, ordering
from tessera_patches.tilespec.draft.vocabulary import KnowingSome
from tessera_patches.tilespec.extend.offsets import fuse_extend


class Sized(Mixin):
    """A draft worker whose draft-extends have graphs of their own width."""

    scores: Scores | TreeScores

    def score(self, scores: Scores | TreeScores) -> None:
        """Fill these from now on."""
        self.scores = scores
        self._constants: dict[int, tuple[Any, Any]] = {}

    def _capture_cuda_graphs(self) -> None:
        """SGLang takes the width of the command line in its adaptive mode too, and runs others without a graph."""
        fuse_extend(self.draft_extend_attn_backend, self.draft_runner.model)
        args = self.draft_runner.server_args
        width = args.speculative_num_draft_tokens
        args.override("tessera", speculative_num_draft_tokens=self.speculative_num_draft_tokens)
        try:
            # Forwards in a graph read its buffers; SGLang would have each copy them to others first.
            with envs.SGLANG_EAGER_INPUT_NO_COPY.override(value=True):
                super()._capture_cuda_graphs()
        finally:
            args.override("tessera", speculative_num_draft_tokens=width)


class ScoredChains(Mixin):
    """A draft worker that also notes the probability of every drafted token of a chain.

    SGLang computes it only where it samples drafts, and otherwise puts 1. It is taken where the logits are: between the
    draft model's forwards, or where they are sampled, and captured with them where there are graphs. Of a sampled draft
    too it is that of the likeliest token: what is verified must not depend on the token that was sampled.
    """

    scores: Scores
    _topk1_parents_prealloc: Any
    _topk1_score_indices_prealloc: Any

    def _rebuild_topk1_chain_buffers(self) -> None:
        """SGLang makes these constants anew whenever the number of steps changes: here, once for each."""
        if self.speculative_num_steps not in self._constants:
            super()._rebuild_topk1_chain_buffers()
            made = self._topk1_parents_prealloc, self._topk1_score_indices_prealloc
            self._constants[self.speculative_num_steps] = made
        constants = self._constants[self.speculative_num_steps]
        self._topk1_parents_prealloc, self._topk1_score_indices_prealloc = constants

    def draft(self, batch: Any) -> Any:
        """Draft for a batch."""
        backend = self.target_worker.model_runner.attn_backend
        needs_none = getattr(backend, "reads_no_mask", False) and not batch.has_grammar  # which follows links
        with unlinked.set(needs_none):
            return super().draft(batch)

    def draft_forward(self, forward_batch: Any) -> Any:
        """All forwards of a draft; the first token's probability comes with the batch."""
        first = forward_batch.spec_info.topk_p
        self.scores.begin(first)
        # SGLang organizes a draft as a tree where it has prepared no chains of so many requests.
        with chaining.set(len(first) <= len(self._topk1_parents_prealloc)):
            sampled = self.server_args.speculative_use_rejection_sampling  # these SGLang looks up by itself
            if is_cuda() or sampled:
                renamed = contextlib.nullcontext() if sampled else numbered(self, forward_batch.spec_info)
                with noted.set(self.scores.next_column), renamed:  # where tokens are picked, or sampled
                    return super().draft_forward(forward_batch)
            with Tap(self.draft_runner, "forward", lambda output: self.scores.add_logits(output.next_token_logits)):
                return super().draft_forward(forward_batch)


class ScoredTrees(Mixin):
    """A draft worker whose trees have their nodes in the order of their path scores."""

    scores: TreeScores
    drafted: Any

    def draft(self, batch: Any) -> Any:
        """Draft for a batch, and keep the candidates: what is verified of them is decided afterwards."""
        with Tap(self.cuda_graph_runner, "execute") as replayed:
            verify_input = super().draft(batch)
        parents, selected, *_ = replayed.last or self.drafted
        DraftTree(parents, selected).attach(verify_input)
        return verify_input

    def draft_forward(self, forward_batch: Any) -> Any:
        """All forwards of a draft."""
        with ordering.set(self.scores):
            self.drafted = super().draft_forward(forward_batch)
        return self.drafted


def score_chains(worker: Any) -> None:
    """Make SGLang's draft worker one that drafts chains and notes how sure it is of each token."""
    change_class(worker, extend_class(type(worker), ScoredChains, Finding, Sized, Proposing, KnowingSome))


def score_trees(worker: Any) -> None:
    """Make SGLang's draft worker one that drafts trees and notes their path scores."""
    change_class(worker, extend_class(type(worker), ScoredTrees, Picking, Sized))
