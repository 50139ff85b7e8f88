"""Drafts without branches: each step continues the token before it, and says how sure the draft is of the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.srt.environ import envs

from tessera_kernels.ops.draft.chain_rows import chain_rows
from tessera_kernels.ops.draft.draft_confidence import draft_confidence
from tessera_patches.core.changes import TemporaryFields
from tessera_patches.core.scoped import ScopedValue
from tessera_patches.tilespec.draft.proposals import noted

chaining = ScopedValue[bool]()
"""Whether a chain is being drafted in this process, or captured, of which SGLang keeps the tokens alone."""
unlinked = ScopedValue[bool]()
"""Whether nobody looks at links or a mask of the chains that are drafted in this process."""
numbers = ScopedValue[torch.Tensor]()
"""The target's numbers of the tokens that the draft model knows, int64 ``[D]``, where these are others than its own."""


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


@contextlib.contextmanager
def numbered(worker: Any, drafts: Any) -> Iterator[None]:
    """Have a chain's tokens get the target's numbers where they are picked.

    SGLang looks up each by itself, and joins them in the end; with nothing to look up they are written in place.

    Args:
        worker: SGLang's draft worker; has no map of tokens meanwhile.
        drafts: SGLang's ``EagleDraftInput``, whose first tokens have the target's numbers meanwhile.
    """
    known, first = worker.hot_token_id, drafts.topk_index
    if known is None or envs.SGLANG_ENABLE_ASYNC_ASSERT.get():  # which asserts that numbers are the draft's
        yield
        return
    with (
        TemporaryFields(worker, hot_token_id=None),
        TemporaryFields(drafts, topk_index=known[first]),
        numbers.set(known),
    ):
        yield


def in_a_row(slots: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """AFTER ``per_step_draft_out_cache_loc``: each step's KV slots lie in a row, as in copies of them."""
    return slots.contiguous()


def lay_out(
    original: Callable[..., Any],
    bonus_tokens: torch.Tensor,
    parent_list: Any,
    top_scores_index: Any,
    draft_tokens: torch.Tensor,
    seq_lens: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """AROUND ``build_tree_kernel_efficient``: of a chain tokens and positions are all there is.

    Returns:
        No mask, positions ``[bs * N]``, no links, and tokens ``[bs * N]``; else what SGLang's function returns.
    """
    if not unlinked.value or bonus_tokens.dtype != torch.int64:
        told = parent_list, top_scores_index, draft_tokens, seq_lens
        found: tuple[Any, ...] = original(bonus_tokens, *told, *args, **kwargs)
        return found
    rows = draft_tokens.shape[0] * (draft_tokens.shape[1] + 1)
    tokens, positions = draft_tokens.new_empty(rows), draft_tokens.new_empty(rows)
    chain_rows(bonus_tokens, draft_tokens, seq_lens, tokens, positions)
    return None, positions, None, None, None, tokens


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
        Confidences ``[bs, 1]``, which nobody reads here, and tokens ``[bs, 1]``, by the target's numbers.
    """
    if noted.value is None:
        found: tuple[torch.Tensor, torch.Tensor]
        found = original(next_token_logits, positions, draft_tokens, draft_token_column)
        return found
    rows = len(next_token_logits)
    confidence = noted.value(rows)
    token = torch.empty((rows, 1), dtype=torch.int64, device=next_token_logits.device)
    chain = None if draft_tokens is None else draft_tokens[:, draft_token_column]
    draft_confidence(next_token_logits, confidence, token[:, 0], positions, chain, numbers.value)
    return confidence.unsqueeze(1), token
