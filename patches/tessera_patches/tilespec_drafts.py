"""SGLang's draft workers, which also note what each drafted token is worth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

from tessera.tilespec.scores import Scores
from tessera.tilespec.tree_scores import TreeScores
from tessera_patches.tilespec_trees import DraftTree, attach, ordering


def _of_own_width(kind: Any) -> Any:
    """SGLang's draft worker ``kind``, which captures draft-extends at their own width.

    SGLang takes that of the command line in its adaptive mode too, and then runs other widths without a graph.
    """

    class OwnWidth(kind):
        def _capture_cuda_graphs(self) -> None:
            args = self.draft_runner.server_args
            width = args.speculative_num_draft_tokens
            args.override("tessera", speculative_num_draft_tokens=self.speculative_num_draft_tokens)
            try:
                super()._capture_cuda_graphs()
            finally:
                args.override("tessera", speculative_num_draft_tokens=width)

    return OwnWidth


def scored_chains(kind: Any) -> type:
    """SGLang's draft worker ``kind``, which also notes the probability of every drafted token of a chain.

    SGLang computes it only where it samples drafts, and otherwise puts 1. It is taken where the logits are: between the
    draft model's forwards, and captured with them where there are graphs.
    """
    base: Any = _of_own_width(kind)

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
            self.scores.begin(forward_batch.spec_info.topk_p)
            with _tapped(self.draft_runner, "forward") as outputs:
                outputs.on = self.scores.next
                return super().draft_forward(forward_batch)

        def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
            """Runs the draft model over the verified tokens, and picks the first token of the next draft."""
            graphs = self.cuda_graph_runner_for_draft_extend
            with _tapped(self.draft_runner, "forward") as eager, _tapped(graphs, "execute") as replayed:
                super()._draft_extend_for_decode(batch, batch_result)
            logits = (eager.last or replayed.last).next_token_logits
            batch_result.next_draft_input.topk_p = self.scores.probability(logits)

    return ScoredChains


def scored_trees(kind: Any) -> type:
    """SGLang's draft worker ``kind``, whose trees have their nodes in the order of their path scores."""
    base: Any = _of_own_width(kind)

    class ScoredTrees(base):
        scores: TreeScores
        drafted: Any

        def draft(self, batch: Any) -> Any:
            """Draft for a batch, and keep the candidates: what is verified of them is decided afterwards."""
            with _tapped(self.cuda_graph_runner, "execute") as replayed:
                verify_input = super().draft(batch)
            parents, selected, *_ = replayed.last or self.drafted
            attach(verify_input, DraftTree(parents, selected))
            return verify_input

        def draft_forward(self, forward_batch: Any) -> Any:
            """All forwards of a draft."""
            with ordering(self.scores):
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
            tap.on(tap.last.next_token_logits)
        return output

    setattr(owner, name, watched)
    try:
        yield tap
    finally:
        delattr(owner, name)
