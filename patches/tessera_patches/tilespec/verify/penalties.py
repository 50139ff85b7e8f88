"""Penalties that count tokens instead of steps, instead of SGLang's. Scheduler process.

SGLang feeds its penalizers the last token that the host knows, once in each step. Here they get all that it learnt
since, and the device adds what the host does not know yet.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from sglang.srt.sampling.penaltylib.orchestrator import _BatchedPenalizer
from sglang.srt.utils.common import is_pin_memory_available

from tessera.tilespec.penalties import Penalties

_NAME = "tessera_penalties"
_COUNTED = "tessera_counted"
"""The attribute of SGLang's ``Req`` that says how many of its tokens its batch has counted."""


def of(sampling_info: Any) -> Penalties | None:
    """The penalties of a batch that is being computed; None where no request has any."""
    found: Penalties | None = getattr(sampling_info, _NAME, None)
    return found


def forget(sampling_info: Any) -> None:
    """They are applied."""
    setattr(sampling_info, _NAME, None)


class OutputCounts(_BatchedPenalizer):
    """The one penalizer of a batch: frequency, presence, repetition and ``min_new_tokens`` together.

    Attributes:
        penalties: of the batch's requests in their order, with what the host knew when it was last asked.
    """

    penalties: Penalties

    def _is_required(self) -> bool:
        return any(_penalized(req.sampling_params) for req in self.orchestrator.reqs())

    def _prepare(self) -> None:
        orchestrator = self.orchestrator
        reqs = orchestrator.reqs()
        self.penalties = _none_counted(reqs, orchestrator.vocab_size, orchestrator.device)
        for req in reqs:
            setattr(req, _COUNTED, 0)
        self._count(reqs)  # those that were retracted have some

    def _cumulate_output_tokens(self, output_ids: torch.Tensor) -> None:  # noqa: ARG002 - the last one of each request
        self._count(self.orchestrator.reqs())

    def _count(self, reqs: Any) -> None:
        new = [req.output_ids[getattr(req, _COUNTED) :] for req in reqs]
        longest = max(map(len, new), default=0)
        if longest == 0:
            return
        table = _pinned((len(reqs), longest + 1), self.orchestrator.device)
        rows = table.numpy()
        for row, req, tokens in zip(rows, reqs, new, strict=True):
            row[0], row[1 : len(tokens) + 1] = len(tokens), np.array(tokens, np.int64)
            setattr(req, _COUNTED, len(req.output_ids))
        there = table.to(self.orchestrator.device, non_blocking=True)
        self.penalties = self.penalties.with_tokens(there[:, 1:], there[:, 0])

    def _apply(self, logits: torch.Tensor) -> None:
        """`penalize` and `tessera_patches.tilespec.verify.accept` do, when it is known what logits are of."""

    def _filter(self, keep_indices: torch.Tensor) -> None:
        self.penalties = self.penalties.select(keep_indices)

    def _merge(self, their: OutputCounts) -> None:
        self.penalties = self.penalties.concat(their.penalties)

    def _teardown(self) -> None:
        if self.is_prepared():
            del self.penalties


def count_outputs(
    original: Callable[..., None], orchestrator: Any, vocab_size: int, batch: Any, penalizers: set[type]
) -> None:
    """AROUND ``BatchedPenalizerOrchestrator.__init__``: one penalizer for SGLang's four."""
    del penalizers
    original(orchestrator, vocab_size, batch, {OutputCounts})


def with_penalties(original: Callable[..., Any], sampling_info: Any) -> Any:
    """AROUND ``SamplingBatchInfo.copy_for_forward``: the copy has `Penalties` for SGLang's matrix of zeros."""
    asked = original(sampling_info)
    orchestrator = sampling_info.penalizer_orchestrator
    if orchestrator.is_required:
        asked.acc_additive_penalties = None
        setattr(asked, _NAME, orchestrator.penalizers[OutputCounts].penalties)
    return asked


def penalize(original: Callable[..., None], sampling_info: Any, logits: torch.Tensor) -> None:
    """AROUND ``SamplingBatchInfo.apply_logits_bias``: the logits after prompts, which no draft continues."""
    penalties = of(sampling_info)
    if penalties is not None:
        penalties.penalize(logits)
    original(sampling_info, logits)


def _penalized(asked: Any) -> bool:
    counting = asked.frequency_penalty != 0 or asked.presence_penalty != 0 or asked.repetition_penalty != 1
    return bool(counting or asked.min_new_tokens > 0)


def _none_counted(reqs: Any, vocabulary: int, device: Any) -> Penalties:
    """Of requests none of whose tokens is counted yet."""
    asked = [req.sampling_params for req in reqs]
    stops = list(zip(*zip_longest(*(_stops(req) for req in reqs)), strict=True)) or [()] * len(reqs)
    floats = torch.tensor([[one.frequency_penalty, one.presence_penalty, one.repetition_penalty] for one in asked])
    frequency, presence, repetition = floats.to(device).split(1, dim=1)
    return Penalties(
        torch.zeros((len(reqs), vocabulary), device=device),
        torch.zeros(len(reqs), dtype=torch.int64, device=device),
        torch.tensor([len(req.origin_input_ids) for req in reqs], device=device),
        frequency,
        presence,
        repetition,
        torch.tensor([one.min_new_tokens for one in asked], device=device),
        torch.tensor([[token or 0 for token in row] for row in stops], dtype=torch.int64, device=device),
        torch.tensor([[(token is not None) * -torch.inf for token in row] for row in stops], device=device),
    )


def _stops(req: Any) -> list[int]:
    """Tokens that end a request which wants a least number of them."""
    if req.sampling_params.min_new_tokens == 0:
        return []
    found = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        found |= {req.tokenizer.eos_token_id, *(req.tokenizer.additional_stop_token_ids or ())}
    return sorted(found - {None})


def _pinned(shape: tuple[int, int], device: Any) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, pin_memory=is_pin_memory_available(device))
