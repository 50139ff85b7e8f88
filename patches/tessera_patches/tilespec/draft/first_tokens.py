"""The first token of each request's next draft, which comes with the draft-extend over what was verified."""

from __future__ import annotations

from typing import Any

import torch

from tessera.tilespec.scores import Scores
from tessera_patches.core.changes import Mixin, Tap


class _Picked(torch.Tensor):
    """Rows that were picked already: SGLang's index of those to pick says nothing new."""

    def __getitem__(self, index: Any) -> Any:
        return self.as_subclass(torch.Tensor)


class _Read(torch.Tensor):
    """The same of logits whose likeliest tokens are known: SGLang's arg-max of them is these, and reads nothing.

    Attributes:
        confidence: the greatest probability of each row, float32 ``[rows, 1]``.
        tokens: whose that is, int64 ``[rows, 1]``.
    """

    confidence: torch.Tensor
    tokens: torch.Tensor

    def __getitem__(self, index: Any) -> Any:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.argmax:
            return args[0].tokens
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


class Picking(Mixin):
    """A draft worker whose model computes the rows alone that are looked at (`last_rows_only`)."""

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
        """Runs the draft model over the verified tokens, and picks the first token of the next draft."""
        graphs = self.cuda_graph_runner_for_draft_extend
        bs = batch.seq_lens.shape[0]

        def extended(output: Any) -> None:
            self._extended(output, bs)

        with Tap(self.draft_runner, "forward", extended), Tap(graphs, "execute", extended):
            super()._draft_extend_for_decode(batch, batch_result)

    def _extended(self, output: Any, bs: int) -> None:
        """Called with what the draft model computed, padding included: picks the rows of ``bs`` requests."""
        output.next_token_logits = self._picked(output.next_token_logits, bs)
        if output.hidden_states is not None:  # stay for the next step, and may lie in a graph's memory
            output.hidden_states = output.hidden_states[:bs].clone().as_subclass(_Picked)

    def read(self, logits: torch.Tensor | None) -> torch.Tensor | None:
        """Called with the logits ``[rows, V]`` that are picked, where they are computed: inside captured graphs."""
        return logits

    def _picked(self, logits: torch.Tensor, bs: int) -> torch.Tensor:
        """The same of their logits ``[rows, V]``."""
        return logits[:bs].as_subclass(_Picked)


class Finding(Picking):
    """The same for chains, whose tokens come with the draft's confidence in them, from one read of the logits.

    SGLang's arg-max would read them a second time. Where drafts are sampled nothing is left to find.
    """

    scores: Scores
    _first: tuple[torch.Tensor, torch.Tensor] | None = None

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
        super()._draft_extend_for_decode(batch, batch_result)
        if self._first is not None:
            drafts = batch_result.next_draft_input
            drafts.topk_p, drafts.topk_index = self._first
            self._first = None

    def read(self, logits: torch.Tensor | None) -> torch.Tensor | None:
        """What is found lies in the graph's memory: it is drafted from, or relayed, before another draft-extend."""
        if logits is None or self.server_args.speculative_use_rejection_sampling:
            return logits
        confidence, tokens = self.scores.argmax_with_confidence(logits)
        read = logits.as_subclass(_Read)
        read.confidence, read.tokens = confidence, tokens
        return read

    def _picked(self, logits: torch.Tensor, bs: int) -> torch.Tensor:
        if isinstance(logits, _Read):
            self._first = logits.confidence[:bs], logits.tokens[:bs]
            return logits
        return super()._picked(logits, bs)
