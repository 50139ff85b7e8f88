"""What drafts are sampled from, where they are: SGLang's rejection sampling."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_COLD = 1e-4
"""A temperature at which a token that is likelier by a logit of 0.01 has all the probability there is."""


def certain(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Probabilities float32 ``[bs, V]`` that tokens ``[bs, 1]`` were sampled from which nobody sampled: 1 for each."""
    zeros = torch.zeros(len(tokens), vocabulary, device=tokens.device)
    return zeros.scatter_(1, tokens, 1.0)


@contextlib.contextmanager
def cooled(asked: Any) -> Iterator[None]:
    """Have greedy requests draft their likeliest tokens.

    SGLang samples their drafts too, as if at temperature 1, and few are right. What drafts were sampled from is handed
    on, so one temperature is as exact as another.

    Args:
        asked: SGLang's ``SamplingBatchInfo``; changed meanwhile.
    """
    warm = asked.temperatures
    asked.temperatures = warm.masked_fill(asked.top_ks.view_as(warm) == 1, _COLD)
    try:
        yield
    finally:
        asked.temperatures = warm


def proposing(kind: Any) -> Any:
    """SGLang's draft worker ``kind``: greedy requests draft what is likeliest, and scores do not look at samples.

    Without rejection sampling it is as it was.
    """

    class Proposing(kind):
        def draft(self, batch: Any) -> Any:
            """Draft for a batch."""
            with self._cooled(batch):
                return super().draft(batch)

        def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
            with self._cooled(batch):
                super()._draft_extend_for_decode(batch, batch_result)

        def _draft_extend_for_prefill(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            """The first draft of a prompt. Of a sampled token SGLang notes how likely that one was."""
            with self._cooled(batch):
                drafts = super()._draft_extend_for_prefill(batch, *args, **kwargs)
            if drafts.draft_probs is not None:
                drafts.topk_p = drafts.draft_probs.amax(1, keepdim=True)
            return drafts

        def _cooled(self, batch: Any) -> contextlib.AbstractContextManager[None]:
            samples = self.server_args.speculative_use_rejection_sampling and batch.sampling_info.is_any_greedy
            return cooled(batch.sampling_info) if samples else contextlib.nullcontext()

    return Proposing
