"""What SGLang's ``FutureMap`` keeps on the device from a step to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tessera_kernels.ops.draft.stash_drafts import DraftRows

if TYPE_CHECKING:
    from sglang.srt.managers.overlap_utils import FutureMap


def draft_buffers(future_map: FutureMap) -> DraftRows | None:
    """The drafts of all requests, a row for each row of the slot map; None before the first ones, or without any."""
    if not getattr(future_map, "need_topk", False):
        return None
    states = future_map.hidden_states_buf if future_map.need_hidden_states else None
    return DraftRows(future_map.output_tokens_buf, future_map.topk_p_buf, future_map.topk_index_buf, states)


def keeps_states(future_map: FutureMap) -> bool:
    """Whether hidden states are among them; False before the first ones."""
    return bool(getattr(future_map, "need_hidden_states", False))


def proposal_buffer(future_map: FutureMap) -> torch.Tensor | None:
    """The distributions that drafts were sampled from, float32 ``[requests, D]``; None before the first ones."""
    proposals: torch.Tensor | None = future_map.draft_probs_buf
    return proposals
