"""The first token of each request's next draft, from the draft-extend over the verified tokens."""

from typing import Any

import torch

from tessera.tilespec.scores import Scores
from tessera_patches.core import calls
from tessera_patches.core.changes import Mixin, Tap
from tessera_patches.engine.batches import batch_size
from tessera_patches.engine.options import samples_drafts
from tessera_patches.engine.workers import SELECTS_ROWS


class GatheredRows(torch.Tensor):
    """Rows of last accepted tokens. SGLang's gather of these rows from all rows returns them as they are."""

    def __getitem__(self, index: Any) -> Any:
        calls.count(GatheredRows)
        return self.as_subclass(torch.Tensor)


class ArgmaxedLogits(torch.Tensor):
    """The same for logits whose arg-max is known: ``torch.argmax`` returns it, and reads nothing.

    Attributes:
        confidence: the greatest probability of each row, float32 ``[rows, 1]``.
        tokens: its token, int64 ``[rows, 1]``.
    """

    confidence: torch.Tensor
    tokens: torch.Tensor

    def __getitem__(self, index: Any) -> Any:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.argmax:
            calls.count(ArgmaxedLogits)
            return args[0].tokens
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


class LastRowsExtend(Mixin):
    """A draft worker whose model computes the rows of last accepted tokens only: `compute_last_rows_only`."""

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any, **kwargs: Any) -> None:
        """Runs the draft model over the verified tokens, and selects the first token of the next draft."""
        graphs = self.cuda_graph_runner_for_draft_extend
        bs = batch_size(batch)

        def on_output(output: Any) -> None:
            self._on_output(output, bs)

        def on_replay(output: Any) -> None:
            self._on_selected(output.next_token_logits, bs)

        replayed = on_replay if SELECTS_ROWS else on_output
        by = LastRowsExtend
        with Tap(by, self.draft_runner, "forward", on_output), Tap(by, graphs, "execute", replayed):
            super()._draft_extend_for_decode(batch, batch_result, **kwargs)

    def _on_output(self, output: Any, bs: int) -> None:
        """Drop the padding of the draft model's output (in place), for ``bs`` requests."""
        output.next_token_logits = self._select(output.next_token_logits, bs)
        if output.hidden_states is not None:  # used in the next step, and may lie in a graph's memory
            output.hidden_states = output.hidden_states[:bs].clone().as_subclass(GatheredRows)

    def _on_selected(self, logits: torch.Tensor, bs: int) -> None:
        """Called with the logits ``[bs, V]`` of a graph that has selected them."""

    def on_logits(self, logits: torch.Tensor | None) -> torch.Tensor | None:
        """Called with the logits ``[rows, V]`` of last accepted tokens, inside captured graphs. Returns them."""
        return logits

    def _select(self, logits: torch.Tensor, bs: int) -> torch.Tensor:
        """The logits of ``bs`` requests, of logits ``[rows, V]``."""
        return logits[:bs].as_subclass(GatheredRows)


class FirstTokens(LastRowsExtend):
    """The same for chains, with tokens and confidences from one read of the logits. Not where drafts are sampled."""

    scores: Scores
    _first_tokens: tuple[torch.Tensor, torch.Tensor] | None = None

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any, **kwargs: Any) -> None:
        super()._draft_extend_for_decode(batch, batch_result, **kwargs)
        if self._first_tokens is not None:
            drafts = batch_result.next_draft_input
            drafts.topk_p, drafts.topk_index = self._first_tokens
            self._first_tokens = None

    def on_logits(self, logits: torch.Tensor | None) -> torch.Tensor | None:
        """Computes the tokens and confidences. They lie in the graph's memory, and are read before its next replay."""
        if logits is None or samples_drafts():
            return logits
        confidence, tokens = self.scores.argmax_with_confidence(logits)
        marked = logits.as_subclass(ArgmaxedLogits)
        marked.confidence, marked.tokens = confidence, tokens
        return marked

    def _select(self, logits: torch.Tensor, bs: int) -> torch.Tensor:
        self._on_selected(logits, bs)
        return logits if isinstance(logits, ArgmaxedLogits) else super()._select(logits, bs)

    def _on_selected(self, logits: torch.Tensor, bs: int) -> None:
        if isinstance(logits, ArgmaxedLogits):
            self._first_tokens = logits.confidence[:bs], logits.tokens[:bs]
