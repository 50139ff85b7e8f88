"""Drafts without branches: each draft step continues the last token, and gives its confidence."""

from collections.abc import Callable
from typing import Any

import torch

from tessera_kernels.ops.draft.draft_confidence import draft_confidence
from tessera_patches.core.scoped import ScopedValue
from tessera_patches.tilespec.draft.proposals import confidence_sink

drafts_chain = ScopedValue[bool]()
"""Whether a chain is being drafted, or captured, of which SGLang keeps only the tokens."""


def continue_chain(
    original: Callable[..., Any],
    i: int,
    topk_p: torch.Tensor,
    topk_index: torch.Tensor,
    hidden_states: torch.Tensor | None,
    scores: torch.Tensor | None,
    topk: int,
) -> tuple[Any, ...]:
    """AROUND ``select_top_k_tokens``: the only candidate of a chain, without the three kernels that select it.

    Returns:
        The next input ids ``[bs]``, the hidden states, scores that are not read, and the step's candidates, of which
        only the tokens ``[bs, 1]`` are read.
    """
    if not drafts_chain.value:
        found: tuple[Any, ...] = original(i, topk_p, topk_index, hidden_states, scores, topk)
        return found
    return topk_index.flatten(), hidden_states, topk_p, (None, topk_index, None)


def contiguous_slots(slots: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """AFTER ``per_step_draft_out_cache_loc``: contiguous KV slots of each step, as copies of them would be."""
    return slots.contiguous()


def argmax_with_confidence(
    original: Callable[..., Any],
    next_token_logits: torch.Tensor,
    positions: torch.Tensor,
    draft_tokens: torch.Tensor | None = None,
    draft_token_column: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """AROUND ``draft_topk1_postprocess``, on a GPU: the same with confidences, from one read of the logits.

    Returns:
        Confidences ``[bs, 1]``, where SGLang has 1, and tokens ``[bs, 1]``.
    """
    if confidence_sink.value is None:
        found: tuple[torch.Tensor, torch.Tensor]
        found = original(next_token_logits, positions, draft_tokens, draft_token_column)
        return found
    rows = len(next_token_logits)
    confidence = confidence_sink.value(rows)
    token = torch.empty((rows, 1), dtype=torch.int64, device=next_token_logits.device)
    chain = None if draft_tokens is None else draft_tokens[:, draft_token_column]
    draft_confidence(next_token_logits, confidence, token[:, 0], positions, chain)
    return confidence.unsqueeze(1), token
