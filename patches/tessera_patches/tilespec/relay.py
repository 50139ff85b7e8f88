"""The drafts for the next step, which SGLang's ``FutureMap`` stores on the device: one kernel instead of five."""

from collections.abc import Callable
from typing import Any

import torch

from tessera_kernels.ops.draft.stash_drafts import DraftRows, stash_drafts
from tessera_patches.engine.relay import draft_buffers, keeps_states, proposal_buffer


def stash(original: Callable[..., None], future_map: Any, future_indices: torch.Tensor, payload: Any) -> None:
    """AROUND ``FutureMap.stash``: writes the same. SGLang stores the first drafts, and those that our kernel cannot."""
    drafts, pool = _drafts(future_map, payload), draft_buffers(future_map)
    if drafts is None or pool is None or not _on_gpu(future_indices) or not _fit(future_indices, drafts, pool):
        original(future_map, future_indices, payload)
        return
    proposals = proposal_buffer(future_map)
    if payload.draft_probs is not None and proposals is None:
        original(future_map, future_indices, payload)
        return
    stash_drafts(drafts, future_indices, pool)
    if proposals is not None and payload.draft_probs is not None:
        proposals[future_indices] = payload.draft_probs


def warm_up(drafts: Any) -> None:
    """Compile the kernel for these drafts; warm-up steps of a worker do not use ``FutureMap``.

    Args:
        drafts: SGLang's ``EagleDraftInput`` of a batch.
    """
    rows = DraftRows(drafts.bonus_tokens, drafts.topk_p, drafts.topk_index, drafts.hidden_states)
    nowhere = DraftRows._make(None if part is None else torch.empty_like(part) for part in rows)
    requests = torch.arange(len(rows.tokens), device=rows.tokens.device)
    for tokens in (rows.tokens.int(), rows.tokens.long()):  # of a verification, and of a prefill
        stash_drafts(rows._replace(tokens=tokens), requests, nowhere)


def _drafts(future_map: Any, payload: Any) -> DraftRows | None:
    """The drafts of a payload; None if it has none, or more than our kernel supports."""
    if payload.topk_p is None or payload.topk_index is None or payload.dsa_topk_indices is not None:
        return None
    states = payload.hidden_states if keeps_states(future_map) else None
    return DraftRows(payload.bonus_tokens, payload.topk_p, payload.topk_index, states)


def _on_gpu(requests: torch.Tensor) -> bool:
    return requests.is_cuda


def _fit(requests: torch.Tensor, drafts: DraftRows, pool: DraftRows) -> bool:
    """Whether `stash_drafts` supports these tensors."""
    bs = requests.shape[0]
    if bs == 0 or requests.dtype != torch.int64 or not requests.is_contiguous():
        return False
    if drafts.tokens.dtype not in {torch.int32, torch.int64} or (drafts.states is None) != (pool.states is None):
        return False
    states = [] if drafts.states is None or pool.states is None else [(drafts.states, pool.states)]
    matrices = [(drafts.probabilities, pool.probabilities), (drafts.drafted, pool.drafted), *states]
    return _plain(drafts.tokens, (bs,), requests) and all(
        rows.dtype == kept.dtype and _plain(rows, (bs, kept.shape[-1]), requests) for rows, kept in matrices
    )


def _plain(rows: torch.Tensor, shape: tuple[int, ...], requests: torch.Tensor) -> bool:
    return rows.shape == shape and rows.is_contiguous() and rows.device == requests.device
