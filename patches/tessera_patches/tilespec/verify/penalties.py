"""Penalties by tokens instead of steps. Scheduler process.

SGLang's penalizers get the last token that the host knows, once in each step. Ours gets all new tokens, and the device
adds those that the host does not know yet.
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
from tessera_patches.core import calls
from tessera_patches.engine.model import logits_width
from tessera_patches.engine.requests import output_ids, output_tokens, prompt_ids

_NAME = "tessera_penalties"
_COUNTED = "tessera_counted"
"""The attribute of SGLang's ``Req`` with the number of its tokens that its batch has counted."""


def of(sampling_info: Any) -> Penalties | None:
    """The penalties of the batch of a forward; None if no request has any."""
    found: Penalties | None = getattr(sampling_info, _NAME, None)
    return found


def clear(sampling_info: Any) -> None:
    """Remove the penalties, once they are applied."""
    setattr(sampling_info, _NAME, None)


class TokenPenalizer(_BatchedPenalizer):
    """The only penalizer of a batch: frequency, presence, repetition and ``min_new_tokens``.

    Attributes:
        penalties: the penalties of the batch, with the tokens that the host knew at the last update.
    """

    penalties: Penalties

    def __init__(self, orchestrator: Any) -> None:
        super().__init__(orchestrator)
        calls.count(TokenPenalizer)

    def _is_required(self) -> bool:
        return any(_penalized(req.sampling_params) for req in self.orchestrator.reqs())

    def _prepare(self) -> None:
        orchestrator = self.orchestrator
        reqs = orchestrator.reqs()
        self.penalties = _empty_penalties(reqs, logits_width(orchestrator), orchestrator.device)
        for req in reqs:
            setattr(req, _COUNTED, 0)
        self._count(reqs)  # retracted requests have tokens

    def _cumulate_output_tokens(self, output_ids: torch.Tensor) -> None:  # noqa: ARG002 - the last one of each request
        self._count(self.orchestrator.reqs())

    def _count(self, reqs: Any) -> None:
        new = [output_ids(req)[getattr(req, _COUNTED) :] for req in reqs]
        longest = max(map(len, new), default=0)
        if longest == 0:
            return
        table = _pinned((len(reqs), longest + 1), self.orchestrator.device)
        rows = table.numpy()
        for row, req, tokens in zip(rows, reqs, new, strict=True):
            row[0], row[1 : len(tokens) + 1] = len(tokens), np.array(tokens, np.int64)
            setattr(req, _COUNTED, output_tokens(req))
        there = table.to(self.orchestrator.device, non_blocking=True)
        self.penalties = self.penalties.with_tokens(there[:, 1:], there[:, 0])

    def _apply(self, logits: torch.Tensor) -> None:
        """Nothing: `penalize` and `tessera_patches.tilespec.verify.accept` apply them."""

    def _filter(self, keep_indices: torch.Tensor) -> None:
        self.penalties = self.penalties.select(keep_indices)

    def _merge(self, their: TokenPenalizer) -> None:
        self.penalties = self.penalties.concat(their.penalties)

    def _teardown(self) -> None:
        if self.is_prepared():
            del self.penalties


def use_token_penalizer(
    original: Callable[..., None], orchestrator: Any, vocab_size: int, batch: Any, penalizers: set[type]
) -> None:
    """AROUND ``BatchedPenalizerOrchestrator.__init__``: one penalizer instead of SGLang's four."""
    del penalizers
    original(orchestrator, vocab_size, batch, {TokenPenalizer})


def attach_penalties(original: Callable[..., Any], sampling_info: Any) -> Any:
    """AROUND ``SamplingBatchInfo.copy_for_forward``: the copy has `Penalties` instead of SGLang's matrix."""
    copied = original(sampling_info)
    orchestrator = sampling_info.penalizer_orchestrator
    if orchestrator.is_required:
        copied.acc_additive_penalties = None
        own: TokenPenalizer = orchestrator.penalizers[TokenPenalizer]
        setattr(copied, _NAME, own.penalties)
    return copied


def penalize(original: Callable[..., None], sampling_info: Any, logits: torch.Tensor) -> None:
    """AROUND ``SamplingBatchInfo.apply_logits_bias``: penalizes the logits after prompts, which have no drafts."""
    penalties = of(sampling_info)
    if penalties is not None:
        penalties.penalize(logits)
    original(sampling_info, logits)


def _penalized(params: Any) -> bool:
    counting = params.frequency_penalty != 0 or params.presence_penalty != 0 or params.repetition_penalty != 1
    return bool(counting or params.min_new_tokens > 0)


def _empty_penalties(reqs: Any, vocab_size: int, device: Any) -> Penalties:
    """The penalties of requests none of whose tokens are counted yet."""
    params = [req.sampling_params for req in reqs]
    stops = list(zip(*zip_longest(*(_stops(req) for req in reqs)), strict=True)) or [()] * len(reqs)
    floats = torch.tensor([[one.frequency_penalty, one.presence_penalty, one.repetition_penalty] for one in params])
    frequency, presence, repetition = floats.to(device).split(1, dim=1)
    return Penalties(
        torch.zeros((len(reqs), vocab_size), device=device),
        torch.zeros(len(reqs), dtype=torch.int64, device=device),
        torch.tensor([len(prompt_ids(req)) for req in reqs], device=device),
        frequency,
        presence,
        repetition,
        torch.tensor([one.min_new_tokens for one in params], device=device),
        torch.tensor([[token or 0 for token in row] for row in stops], dtype=torch.int64, device=device),
        torch.tensor([[(token is not None) * -torch.inf for token in row] for row in stops], device=device),
    )


def _stops(req: Any) -> list[int]:
    """The stop tokens of a request with ``min_new_tokens``; none of others."""
    if req.sampling_params.min_new_tokens == 0:
        return []
    found = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        found |= {req.tokenizer.eos_token_id, *(req.tokenizer.additional_stop_token_ids or ())}
    return sorted(found - {None})


def _pinned(shape: tuple[int, int], device: Any) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, pin_memory=is_pin_memory_available(device))
