"""Speculative decoding: rows of the target beside what its draft model wants, and rows that follow their KV."""

from collections.abc import Callable
from typing import Any

from tessera.rows.drafts import accepted_slots, with_rows
from tessera_patches.engine.batches import new_slots
from tessera_patches.rows import runtime


def keep_rows(original: Callable[..., Any], processor: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND ``LogitsProcessor._get_hidden_states_to_store``, also while a graph is captured.

    Of a target SGLang keeps what its draft model wants: for EAGLE-3 the states of inner layers, for some models those
    before the final norm. The last layer's go with them, and ``tessera_patches.rows.forward`` takes them off again.
    """
    draft_states = original(processor, hidden_states, *args, **kwargs)
    if draft_states is None or draft_states is hidden_states or id(processor) not in runtime.target_logits:
        return draft_states
    return with_rows(draft_states, hidden_states)


def move_rows(
    result: None, batch: Any, accept_index: Any, num_correct_drafts: Any, token_to_kv_pool_allocator: Any
) -> None:
    """AFTER ``move_accept_tokens_to_target_kvcache``, on the same stream: accepted rows go where their KV went."""
    if runtime.rows is not None:
        runtime.rows.move(*accepted_slots(new_slots(batch), accept_index))
