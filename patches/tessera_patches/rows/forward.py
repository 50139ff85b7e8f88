"""The forward: every token's hidden state goes to its KV slot, and a batch that samples nothing needs no logits."""

from collections.abc import Callable
from typing import Any

from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

from tessera.rows.drafts import without_rows
from tessera_patches.engine import ranks
from tessera_patches.engine.batches import is_padded, new_slots, pools_logits
from tessera_patches.engine.model import is_draft, is_standalone
from tessera_patches.rows import runtime


def write_rows(original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND ``ModelRunner.forward``, still on the forward stream: before any later replay can overwrite the states."""
    if is_draft(runner):
        return original(runner, forward_batch, *args, **kwargs)
    # The server's mode is full already, and graphs are captured with it; only STANDALONE asks for no states. On every
    # rank, for ranks must agree in `without_logits`.
    forward_batch.capture_hidden_mode = CaptureHiddenMode.FULL
    # With --enable-dp-attention SGLang pads a batch to those of the other ranks, or makes one up for a rank without.
    is_idle, slots = forward_batch.forward_mode.is_idle(), new_slots(forward_batch)
    output = original(runner, forward_batch, *args, **kwargs)
    if ranks.is_last_stage(runner) and not is_idle:
        states = output.logits_output.hidden_states
        if not is_padded(forward_batch):
            slots = new_slots(forward_batch)
        elif states is not None:
            states = states[: len(slots)]
        draft_states = _written(states, slots)
        output.logits_output.hidden_states = None if is_standalone(runner) else draft_states
    return output


def _written(states: Any, slots: Any) -> Any:
    """Write the rows, on the rank that keeps them, and return SGLang's part of the output."""
    if runtime.rows is None:
        return states
    draft_states, rows = (None, None) if states is None else without_rows(states, runtime.rows.rows.shape[1])
    runtime.rows.write(slots, rows)
    return draft_states


def without_logits(
    original: Callable[..., Any],
    processor: Any,
    input_ids: Any,
    hidden_states: Any,
    lm_head: Any,
    logits_metadata: Any,
    aux_hidden_states: Any = None,
    hidden_states_before_norm: Any = None,
) -> Any:
    """AROUND ``LogitsProcessor.forward``: of a batch of encodes only, the states are all that anybody reads.

    Every tensor-parallel rank must decide alike, also those without a row store: the logits are a collective operation.
    """
    others = aux_hidden_states is not None or hidden_states_before_norm is not None
    if others or not _is_encode_only(logits_metadata):
        return original(
            processor,
            input_ids,
            hidden_states,
            lm_head,
            logits_metadata,
            aux_hidden_states,
            hidden_states_before_norm,
        )
    return LogitsProcessorOutput(
        next_token_logits=None, hidden_states=hidden_states, mm_input_embeds=logits_metadata.mm_input_embeds
    )


def _is_encode_only(batch: Any) -> bool:
    """Every request has ``max_new_tokens`` 0, and none is sampled for all the same (log-probabilities, a grammar).

    Nor do ranks with batches of their own wait for the logits of this one.
    """
    return (
        isinstance(batch, ForwardBatch)
        and not is_padded(batch)
        and batch.is_prefill_only
        and batch.capture_hidden_mode.is_full()
        and not batch.return_logprob
        and batch.multi_item_delimiter_indices is None
        and not pools_logits(batch)
        and batch.sampling_info is not None
        and batch.sampling_info.grammars is None
    )
