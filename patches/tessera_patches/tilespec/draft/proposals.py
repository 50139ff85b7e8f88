"""What drafts are sampled from, where they are: SGLang's rejection sampling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from tessera_kernels.ops.draft.draft_proposal import draft_proposal
from tessera_patches.core.changes import Mixin, TemporaryFields
from tessera_patches.core.scoped import ScopedValue

_COLD = 1e-4
"""A temperature at which a token that is likelier by a logit of 0.01 has all the probability there is."""
noted = ScopedValue[Callable[[int], torch.Tensor]]()
"""Where the confidences of so many rows go, of the draft that is being made in this process, or captured."""


def propose(
    _: Callable[..., Any], next_token_logits: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """AROUND ``sample_draft_proposal``: q ``[bs, D]``, max q ``[bs, 1]`` in the place of SGLang's q(X), and X.

    SGLang looks at q(X) nowhere. What is verified may not depend on it.
    """
    rows, device = len(next_token_logits), next_token_logits.device
    q = torch.empty(next_token_logits.shape, dtype=torch.float32, device=device)
    index = torch.empty((rows, 1), dtype=torch.int64, device=device)
    probability = torch.empty(rows, device=device) if noted.value is None else noted.value(rows)
    coins = torch.rand(rows, device=device)
    draft_proposal(next_token_logits, temperatures, coins, q, index.view(rows), probability)
    return q, probability.unsqueeze(1), index


def certain(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Probabilities float32 ``[bs, V]`` that tokens ``[bs, 1]`` were sampled from which nobody sampled: 1 for each."""
    zeros = torch.zeros(len(tokens), vocabulary, device=tokens.device)
    return zeros.scatter_(1, tokens, 1.0)


def cooled(asked: Any) -> TemporaryFields:
    """Have greedy requests draft their likeliest tokens.

    SGLang samples their drafts too, as if at temperature 1, and few are right. What drafts were sampled from is handed
    on, so one temperature is as exact as another.

    Args:
        asked: SGLang's ``SamplingBatchInfo``; changed meanwhile.
    """
    warm = asked.temperatures
    return TemporaryFields(asked, temperatures=warm.masked_fill(asked.top_ks.view_as(warm) == 1, _COLD))


class Proposing(Mixin):
    """A draft worker whose greedy requests draft what is likeliest, and whose scores do not look at samples.

    Without rejection sampling it is as it was.
    """

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
