"""Draft-extends that compute the row of each request's last accepted token only, where the result allows it.

The draft model reads the rows of all verified tokens, so that its KV cache has them. Nothing after the last layer's
keys and values changes the cache, and the next draft only needs the row of the last accepted token.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sglang.srt.models.llama import LlamaAttention

from tessera import config
from tessera_patches.core.changes import replace_method
from tessera_patches.core.scoped import ScopedValue
from tessera_patches.engine.batches import speculative_input
from tessera_patches.engine.workers import graph_rows


class _LastRows(NamedTuple):
    """The rows of last accepted tokens, int64 ``[bs]``, and the number of all rows."""

    rows: torch.Tensor
    total: int


def attends_in_one_layer(model: Any) -> bool:
    """Whether a model has a single layer, with Llama's attention.

    Then attention too may compute the rows of last accepted tokens only: no layer reads the others.
    """
    layers = _layers(model)
    return len(layers) == 1 and type(getattr(layers[0], "self_attn", None)) is LlamaAttention


def compute_last_rows_only(model: Any, on_logits: Callable[[Any], Any] = lambda logits: logits) -> None:
    """Have a draft model's extends compute logits, and the last layer's MLP, for last accepted tokens only (in place).

    SGLang computes all rows and selects these: for 64 requests, 8 tokens and a vocabulary of 128k, a product of 0.5
    TFLOP and 262 MB of logits, of which 33 MB are read. The MLP is three fifths of the remaining cost of a row, for an
    EAGLE-3 head of an 8B model. SGLang's ``select_index``, made for workers with several layers, does the selection.
    Runs inside captured graphs.

    Args:
        model: the draft model.
        on_logits: called with the logits ``[bs, V]``, or None while SGLang tunes kernels; returns the logits to use.

    Raises:
        RuntimeError: in a forward, if the model ignores ``select_index``.
    """
    by, original = compute_last_rows_only, model.forward
    selected = ScopedValue[_LastRows]()
    mlp = _last_mlp(model)
    if mlp is not None:
        config.found("last_mlps")
        replace_method(by, mlp, "forward", _on_selected_rows(mlp.forward, selected), "LlamaMLP.forward")
    if attends_in_one_layer(model):
        config.found("last_queries")
        projection = model.model.layers[0].self_attn.o_proj
        replace_method(
            by, projection, "forward", _zero_filled(projection.forward, selected), "RowParallelLinear.forward"
        )

    @functools.wraps(original)
    def forward(input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not forward_batch.forward_mode.is_draft_extend_v2():
            return original(input_ids, positions, forward_batch, *args, **kwargs)
        bs, rows, drafts = forward_batch.batch_size, len(input_ids), speculative_input(forward_batch)
        drafts.select_index = _last_rows(drafts, bs, rows)
        buffer = forward_batch.next_token_logits_buffer
        if buffer is not None:
            forward_batch.next_token_logits_buffer = buffer[:bs]
        with selected.set(_LastRows(drafts.select_index, rows)):
            output = original(input_ids, positions, forward_batch, *args, **kwargs)
        logits = output.next_token_logits
        if logits is not None and len(logits) != bs:
            raise RuntimeError(f"tessera: {type(model).__name__} computes logits of rows that were not selected")
        output.next_token_logits = on_logits(logits)
        states = output.hidden_states
        if states is not None and len(states) == rows:  # of inner layers, for EAGLE-3
            output.hidden_states = states[drafts.select_index]
        return output

    replace_method(by, model, "forward", forward, "LlamaForCausalLM.forward")


def _last_rows(drafts: Any, bs: int, rows: int) -> torch.Tensor:
    """The last accepted one of each request's rows, int64 ``[bs]``, of ``rows`` in all."""
    selected = graph_rows(drafts)
    if selected is not None:
        return selected
    width = rows // bs
    accepted: torch.Tensor = drafts.num_accept_tokens[:bs]
    # Graphs of all widths share the counts: during a capture these may be of a wider one.
    begins = torch.arange(0, rows, width, device=accepted.device)
    return begins + (accepted.clamp(max=width) - 1)


def _layers(model: Any) -> Any:
    """A model's layers; none if they are not ``model.model.layers``."""
    return getattr(getattr(model, "model", None), "layers", None) or ()


def _last_mlp(model: Any) -> Any:
    """The MLP of the last layer; None if it is a mixture of experts or something else."""
    layers = _layers(model)
    mlp = getattr(layers[-1], "mlp", None) if layers else None
    return mlp if hasattr(mlp, "gate_up_proj") and hasattr(mlp, "down_proj") else None


def _on_selected_rows(original: Any, selected: ScopedValue[_LastRows]) -> Any:
    """An MLP's forward that computes the selected rows, if any, and returns zeros for the others."""

    @functools.wraps(original)
    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        others = args or kwargs.keys() - {"forward_batch"}  # these may say how rows are distributed over GPUs
        if selected.value is None or others or len(x) != selected.value.total:
            return original(x, *args, **kwargs)
        return _scatter(original(x[selected.value.rows], **kwargs), selected.value)

    return forward


def _zero_filled(original: Any, selected: ScopedValue[_LastRows]) -> Any:
    """The forward of attention's output projection, with zeros for rows that attention did not compute."""

    @functools.wraps(original)
    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        output, bias = original(x, *args, **kwargs)
        if selected.value is None or len(x) == selected.value.total:
            return output, bias
        return _scatter(output, selected.value), bias

    return forward


def _scatter(output: torch.Tensor, selected: _LastRows) -> torch.Tensor:
    return output.new_zeros(selected.total, *output.shape[1:]).index_copy_(0, selected.rows, output)
