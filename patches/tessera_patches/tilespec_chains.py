"""Drafts without branches: what a step continues is the token before it, and nothing has to be looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tessera_patches.scoped import Scoped

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
