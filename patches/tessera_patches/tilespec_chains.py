"""Drafts without branches: each step continues the token before it, and says how sure the draft is of the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tessera_kernels.draft_confidence import draft_confidence
from tessera_patches.scoped import Scoped
from tessera_patches.tilespec_proposals import noted

chaining = Scoped[bool]()
"""Whether a chain is being drafted in this process, or captured, of which SGLang keeps the tokens alone."""


def continue_chain(
    original: Callable[..., Any],
    i: int,
    topk_p: torch.Tensor,
    topk_index: torch.Tensor,
    hidden_states: torch.Tensor | None,
    scores: torch.Tensor | None,
    topk: int,
) -> tuple[Any, ...]:
    """AROUND ``select_top_k_tokens``: of one branch the only candidate, without the three kernels that choose it.

    Returns:
        The next input ids ``[bs]`` and hidden states, scores that nobody reads, and what is kept of the step: its
        tokens ``[bs, 1]``.
    """
    if not chaining.value:
        found: tuple[Any, ...] = original(i, topk_p, topk_index, hidden_states, scores, topk)
        return found
    return topk_index.flatten(), hidden_states, topk_p, (None, topk_index, None)


def pick_likeliest(
    original: Callable[..., Any],
    next_token_logits: torch.Tensor,
    positions: torch.Tensor,
    draft_tokens: torch.Tensor | None = None,
    draft_token_column: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """AROUND ``draft_topk1_postprocess``, on a GPU: the same, with the confidence in the place of a 1.

    One read of the logits gives the token and how sure the draft is of it; SGLang's kernels give the token alone.

    Returns:
        Confidences ``[bs, 1]``, which nobody reads here, and tokens ``[bs, 1]``.
    """
    if noted.value is None:
        found: tuple[torch.Tensor, torch.Tensor]
        found = original(next_token_logits, positions, draft_tokens, draft_token_column)
        return found
    rows = len(next_token_logits)
    confidence = noted.value(rows)
    token = torch.empty((rows, 1), dtype=torch.int64, device=next_token_logits.device)
    chain = None if draft_tokens is None else draft_tokens[:, draft_token_column]
    draft_confidence(next_token_logits, confidence, token[:, 0], positions, chain)
    return confidence.unsqueeze(1), token
