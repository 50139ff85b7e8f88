"""Draft tokens that are sampled, for SGLang's rejection sampling, and the distributions that they are sampled from."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from tessera_kernels.ops.draft.draft_proposal import draft_proposal
from tessera_patches.core.changes import Mixin, TemporaryFields
from tessera_patches.core.scoped import ScopedValue
from tessera_patches.engine.batches import any_greedy
from tessera_patches.engine.options import samples_drafts

_GREEDY_TEMPERATURE = 1e-4
"""At this temperature, a logit that is greater by 0.01 has a probability of 1."""
confidence_sink = ScopedValue[Callable[[int], torch.Tensor]]()
"""Returns the tensor ``[rows]`` for the confidences of the next draft tokens, while a draft is made or captured."""


def sample_proposal(
    _: Callable[..., Any], next_token_logits: torch.Tensor, temperatures: torch.Tensor, *__: Any, **___: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """AROUND ``sample_draft_proposal``: sample draft tokens, with two kernels instead of eight.

    Returns:
        The proposal q, float32 ``[bs, D]``; its maximum ``[bs, 1]``, where SGLang has q(X), which it does not read; and
        the tokens X, int64 ``[bs, 1]``. Which tokens are verified must not depend on q(X).
    """
    rows, device = len(next_token_logits), next_token_logits.device
    q = torch.empty(next_token_logits.shape, dtype=torch.float32, device=device)
    index = torch.empty((rows, 1), dtype=torch.int64, device=device)
    probability = torch.empty(rows, device=device) if confidence_sink.value is None else confidence_sink.value(rows)
    coins = torch.rand(rows, device=device)
    draft_proposal(next_token_logits, temperatures, coins, q, index.view(rows), probability)
    return q, probability.unsqueeze(1), index


def one_hot_probs(tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The proposals of tokens ``[bs, 1]`` that were not sampled: probability 1 for each, float32 ``[bs, V]``."""
    zeros = torch.zeros(len(tokens), vocab_size, device=tokens.device)
    return zeros.scatter_(1, tokens, 1.0)


def low_temperature_for_greedy(sampling_info: Any) -> TemporaryFields:
    """Sample the drafts of greedy requests at a temperature of almost 0, in a ``with`` block.

    SGLang samples them at temperature 1, and few are accepted. Any temperature is exact, as the proposal is passed on.

    Args:
        sampling_info: SGLang's ``SamplingBatchInfo``.
    """
    temperatures = sampling_info.temperatures
    return TemporaryFields(
        low_temperature_for_greedy,
        sampling_info,
        temperatures=temperatures.masked_fill(sampling_info.top_ks.view_as(temperatures) == 1, _GREEDY_TEMPERATURE),
    )


class RejectionSampledDrafts(Mixin):
    """Rejection sampling: greedy requests draft their likeliest tokens, and confidences do not depend on samples."""

    def draft(self, batch: Any, **kwargs: Any) -> Any:
        with self._greedy_temperatures(batch):
            return super().draft(batch, **kwargs)

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any, **kwargs: Any) -> None:
        with self._greedy_temperatures(batch):
            super()._draft_extend_for_decode(batch, batch_result, **kwargs)

    def _draft_extend_for_prefill(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Also makes the confidence of a prompt's first draft token the maximum of q, where SGLang has q(X)."""
        with self._greedy_temperatures(batch):
            drafts = super()._draft_extend_for_prefill(batch, *args, **kwargs)
        if drafts.draft_probs is not None:
            drafts.topk_p = drafts.draft_probs.amax(1, keepdim=True)
        return drafts

    def _greedy_temperatures(self, batch: Any) -> contextlib.AbstractContextManager[None]:
        samples = samples_drafts() and any_greedy(batch)
        return low_temperature_for_greedy(batch.sampling_info) if samples else contextlib.nullcontext()
