"""SGLang's draft workers, which also note what each drafted token is worth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from sglang.srt.utils import is_cuda

from tessera.tilespec.scores import Scores
from tessera.tilespec.tree_scores import TreeScores
from tessera_patches.tilespec_chains import chaining
from tessera_patches.tilespec_draft_vocabulary import knowing_some
from tessera_patches.tilespec_proposals import noted, proposing
from tessera_patches.tilespec_trees import DraftTree, ordering


class _Picked(torch.Tensor):
    """Rows that were picked already: SGLang's index of those to pick only says how many they are."""

    def __getitem__(self, index: Any) -> Any:
        return self.as_subclass(torch.Tensor)[: len(index)]


def _mark_picked(output: Any) -> None:
    output.next_token_logits = output.next_token_logits.as_subclass(_Picked)
    if output.hidden_states is not None:  # stay for the next step, and may lie in a graph's memory
        output.hidden_states = output.hidden_states.clone().as_subclass(_Picked)


def _sized(kind: Any) -> Any:
    """SGLang's draft worker ``kind``, whose draft-extends have graphs of their own width, and `last_rows_only`."""

    class Sized(kind):
        def _capture_cuda_graphs(self) -> None:
            """SGLang takes the width of the command line in its adaptive mode too, and runs others without a graph."""
            args = self.draft_runner.server_args
            width = args.speculative_num_draft_tokens
            args.override("tessera", speculative_num_draft_tokens=self.speculative_num_draft_tokens)
            try:
                super()._capture_cuda_graphs()
            finally:
                args.override("tessera", speculative_num_draft_tokens=width)

        def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
            """Runs the draft model over the verified tokens, and picks the first token of the next draft."""
            graphs = self.cuda_graph_runner_for_draft_extend
            with _tapped(self.draft_runner, "forward") as eager, _tapped(graphs, "execute") as replayed:
                eager.on = replayed.on = _mark_picked
                super()._draft_extend_for_decode(batch, batch_result)
            self._extended((eager.last or replayed.last).next_token_logits, batch_result)

        def _extended(self, logits: torch.Tensor, batch_result: Any) -> None:
            """Called with the logits ``[bs, V]`` that the next draft's first tokens were picked from."""

    return Sized


def scored_chains(kind: Any) -> type:
    """SGLang's draft worker ``kind``, which also notes the probability of every drafted token of a chain.

    SGLang computes it only where it samples drafts, and otherwise puts 1. It is taken where the logits are: between the
    draft model's forwards, or where they are sampled, and captured with them where there are graphs. Of a sampled draft
    too it is that of the likeliest token: what is verified must not depend on the token that was sampled.
    """
    base: Any = _sized(proposing(knowing_some(kind)))

    class ScoredChains(base):
        scores: Scores
        chains: ClassVar[dict[int, tuple[Any, Any]]] = {}
        _topk1_parents_prealloc: Any
        _topk1_score_indices_prealloc: Any

        def _rebuild_topk1_chain_buffers(self) -> None:
            """SGLang makes these constants anew whenever the number of steps changes: here, once for each."""
            if self.speculative_num_steps not in self.chains:
                super()._rebuild_topk1_chain_buffers()
                made = self._topk1_parents_prealloc, self._topk1_score_indices_prealloc
                self.chains[self.speculative_num_steps] = made
            constants = self.chains[self.speculative_num_steps]
            self._topk1_parents_prealloc, self._topk1_score_indices_prealloc = constants

        def draft_forward(self, forward_batch: Any) -> Any:
            """All forwards of a draft; the first token's probability comes with the batch."""
            first = forward_batch.spec_info.topk_p
            self.scores.begin(first)
            # SGLang organizes a draft as a tree where it has prepared no chains of so many requests.
            with chaining.holding(len(first) <= len(self._topk1_parents_prealloc)):
                if is_cuda() or self.server_args.speculative_use_rejection_sampling:
                    with noted.holding(self.scores.place):  # where tokens are picked, or sampled
                        return super().draft_forward(forward_batch)
                with _tapped(self.draft_runner, "forward") as outputs:
                    outputs.on = lambda output: self.scores.next(output.next_token_logits)
                    return super().draft_forward(forward_batch)

        def _extended(self, logits: torch.Tensor, batch_result: Any) -> None:
            if not self.server_args.speculative_use_rejection_sampling:  # `propose` has said it
                batch_result.next_draft_input.topk_p = self.scores.probability(logits)

    return ScoredChains


def scored_trees(kind: Any) -> type:
    """SGLang's draft worker ``kind``, whose trees have their nodes in the order of their path scores."""
    base: Any = _sized(kind)

    class ScoredTrees(base):
        scores: TreeScores
        drafted: Any

        def draft(self, batch: Any) -> Any:
            """Draft for a batch, and keep the candidates: what is verified of them is decided afterwards."""
            with _tapped(self.cuda_graph_runner, "execute") as replayed:
                verify_input = super().draft(batch)
            parents, selected, *_ = replayed.last or self.drafted
            DraftTree(parents, selected).attach(verify_input)
            return verify_input

        def draft_forward(self, forward_batch: Any) -> Any:
            """All forwards of a draft."""
            with ordering.holding(self.scores):
                self.drafted = super().draft_forward(forward_batch)
            return self.drafted

    return ScoredTrees


class _Tap:
    """Sees each output of a function.

    Attributes:
        last: the last one.
        on: called with each.
    """

    def __init__(self) -> None:
        self.last: Any = None
        self.on: Any = None


@contextlib.contextmanager
def _tapped(owner: Any, name: str) -> Iterator[_Tap]:
    """Watch a method of an object for a while; of None there is nothing to see."""
    tap = _Tap()
    if owner is None:
        yield tap
        return
    original = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        tap.last = getattr(output, "logits_output", output)
        if tap.on is not None:
            tap.on(tap.last)
        return output

    setattr(owner, name, watched)
    try:
        yield tap
    finally:
        delattr(owner, name)
