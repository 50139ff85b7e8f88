"""Draft-extends that compute for one row of each request what one row of each is looked at.

The draft model reads all rows of a draft, so that its KV cache has them. What comes after the last layer's keys and
values changes no cache, and the next draft begins behind each request's last accepted row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sglang.srt.models.llama import LlamaAttention

from tessera_patches.core.changes import replace_method
from tessera_patches.core.scoped import ScopedValue


class _Picked(NamedTuple):
    """Rows that are looked at, int64 ``[bs]``, and of how many."""

    rows: torch.Tensor
    of: int


def asks_once(model: Any) -> bool:
    """Whether attention of a draft model's extends may compute last accepted rows alone: it is in its only layer.

    Then `last_rows_only` puts the output of a backend that does so in its place.
    """
    layers = _layers(model)
    return len(layers) == 1 and type(getattr(layers[0], "self_attn", None)) is LlamaAttention


def last_rows_only(model: Any, read: Callable[[Any], Any] = lambda logits: logits) -> None:
    """Have the draft model's extends compute logits, and the last layer's MLP, of last accepted rows alone (in place).

    SGLang computes all rows, and picks then: with 64 requests, 8 tokens and a vocabulary of 128k a product of 0.5 TFLOP
    and 262 MB of logits, of which 33 are looked at. Its ``select_index`` is for workers of several layers. Of an
    EAGLE-3 head of 8B shape the MLP is three fifths of what each row costs besides. Runs inside captured graphs.

    Args:
        model: the draft model.
        read: gets the logits ``[bs, V]``, or None while SGLang tunes kernels; returns what is handed on in their place.
    """
    original = model.forward
    picked = ScopedValue[_Picked]()
    mlp = _last_mlp(model)
    if mlp is not None:
        replace_method(mlp, "forward", _narrowed(mlp.forward, picked))
    if asks_once(model):
        projection = model.model.layers[0].self_attn.o_proj
        replace_method(projection, "forward", _widened(projection.forward, picked))

    @functools.wraps(original)
    def forward(input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not forward_batch.forward_mode.is_draft_extend_v2():
            return original(input_ids, positions, forward_batch, *args, **kwargs)
        bs, rows, drafts = forward_batch.batch_size, len(input_ids), forward_batch.spec_info
        width = rows // bs
        begins = torch.arange(0, rows, width, device=input_ids.device)
        # Graphs of all widths share this buffer: while one is captured it says what a wider one's rows are.
        drafts.select_index = begins + drafts.num_accept_tokens[:bs].clamp(max=width) - 1
        buffer = forward_batch.next_token_logits_buffer
        if buffer is not None:
            forward_batch.next_token_logits_buffer = buffer[:bs]
        with picked.set(_Picked(drafts.select_index, rows)):
            output = original(input_ids, positions, forward_batch, *args, **kwargs)
        logits = output.next_token_logits
        if logits is not None and len(logits) != bs:
            raise RuntimeError(f"tessera: {type(model).__name__} computes logits of rows that nobody asked for")
        output.next_token_logits = read(logits)
        states = output.hidden_states
        if states is not None and len(states) == rows:  # of inner layers, for EAGLE-3
            output.hidden_states = states[drafts.select_index]
        return output

    replace_method(model, "forward", forward)


def _layers(model: Any) -> Any:
    """Those of a model, none where they lie elsewhere."""
    return getattr(getattr(model, "model", None), "layers", None) or ()


def _last_mlp(model: Any) -> Any:
    """The MLP of the last layer, None where that is a mixture of experts or something else."""
    layers = _layers(model)
    mlp = getattr(layers[-1], "mlp", None) if layers else None
    return mlp if hasattr(mlp, "gate_up_proj") and hasattr(mlp, "down_proj") else None


def _narrowed(original: Any, picked: ScopedValue[_Picked]) -> Any:
    """An MLP's forward that computes picked rows alone where some are, and has zeros for the others."""

    @functools.wraps(original)
    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if picked.value is None or args or kwargs:  # which may say how rows lie on several GPUs
            return original(x, *args, **kwargs)
        return _spread(original(x[picked.value.rows]), picked.value)

    return forward


def _widened(original: Any, picked: ScopedValue[_Picked]) -> Any:
    """The forward of attention's last product, which has zeros for rows that attention computed nothing for."""

    @functools.wraps(original)
    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        output, bias = original(x, *args, **kwargs)
        if picked.value is None or len(x) == picked.value.of:
            return output, bias
        return _spread(output, picked.value), bias

    return forward


def _spread(output: torch.Tensor, picked: _Picked) -> torch.Tensor:
    return output.new_zeros(picked.of, *output.shape[1:]).index_copy_(0, picked.rows, output)
