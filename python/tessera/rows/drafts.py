"""Rows under speculative decoding: which columns of a target's output they are, and where accepted ones move."""

import torch


def with_rows(draft_states: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Append the rows to what SGLang keeps of a target's forward instead of them, such as EAGLE-3's inner states.

    Both ``[tokens, ...]``; the result is ``[tokens, width + H]``, one tensor, so that graphs and slices keep it whole.
    """
    return torch.cat([draft_states, rows], dim=1)


def without_rows(hidden_states: torch.Tensor, hidden_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Undo `with_rows`. Returns SGLang's part and the rows; both are one tensor if SGLang keeps the rows themselves."""
    if hidden_states.shape[1] <= hidden_size:
        return hidden_states, hidden_states
    # Contiguous, as SGLang returns it: kernels of draft models may rely on that.
    return hidden_states[:, :-hidden_size].contiguous(), hidden_states[:, -hidden_size:]


def accepted_slots(out_cache_loc: torch.Tensor, accept_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the rows of accepted drafts belong, and where the verification of their tree left them.

    Follows ``move_accept_tokens_to_target_kvcache`` of SGLang, which moves KV in the same way. No host sync.

    Args:
        out_cache_loc: the slot of each node of each tree, flat. The first slots of a tree are those of its request's
            next positions. They are not read from ``req_to_token``, where another request may have that row by now.
        accept_index: ``[B, D]``, indices into ``out_cache_loc`` of the accepted nodes from the root on, which is its
            tree's first node; -1 for none.

    Returns:
        int64 ``[B * D]`` twice, target and source; 0 (the padding slot) in both where there is none.
    """
    accepted = accept_index.long()
    none = accepted < 0
    places = accepted[:, :1] + torch.arange(accepted.shape[1], device=accepted.device)
    target, source = (
        out_cache_loc[at.masked_fill(none, 0)].long().masked_fill(none, 0).flatten() for at in (places, accepted)
    )
    return target, source
