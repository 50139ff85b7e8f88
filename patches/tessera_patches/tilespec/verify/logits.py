"""Logits in the dtype of the weights, where only our kernels read them.

SGLang copies them to float32: for 512 rows and a vocabulary of 128k it reads 131 MB and writes 262 MB, which are read
instead of 131 MB later. Our kernels convert values when they read them, with the same results.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

from tessera import config
from tessera_patches.core.changes import replace_method
from tessera_patches.engine.model import changes_logits, logits_width


def keep_logits_in_16_bits(model: Any, wanted: Callable[[Any], bool]) -> None:
    """Keep a model's logits ``[n, V]`` in the dtype of its weights in some forward modes (in place).

    Nothing changes if ranks gather logits, if they are scaled or capped, or if the output matrix is quantized, padded
    or has an adapter. In captured graphs they are written to SGLang's buffer for float32, which all graphs share.

    Args:
        model: a model, with or without SGLang's ``logits_processor``.
        wanted: returns for a ``ForwardMode`` whether only our kernels read its logits.
    """
    processor = getattr(model, "logits_processor", None)
    if processor is None or changes_logits(processor):
        return
    config.found("plain_logits")
    original = processor._get_logits

    @functools.wraps(original)
    def get_logits(hidden_states: torch.Tensor, lm_head: Any, metadata: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        more = args or kwargs or not wanted(metadata.forward_mode)
        if more or not _plain(lm_head, hidden_states, logits_width(processor)):
            logits: torch.Tensor = original(hidden_states, lm_head, metadata, *args, **kwargs)
            return logits
        room = metadata.next_token_logits_buffer
        shape = len(hidden_states), logits_width(processor)
        out = None if room is None or room.shape != shape else _in_16_bits(room, hidden_states.dtype)
        return torch.matmul(hidden_states, lm_head.weight.T, out=out)

    replace_method(keep_logits_in_16_bits, processor, "_get_logits", get_logits)


def is_draft_mode(mode: Any) -> bool:
    """Whether a draft model drafts, or reads verified tokens, in this mode; prompts are read in another one."""
    return bool(mode.is_decode() or mode.is_draft_extend_v2())


def _plain(lm_head: Any, hidden_states: torch.Tensor, vocab_size: int) -> bool:
    """Whether SGLang would multiply by a 16-bit matrix without changes."""
    weight = getattr(lm_head, "weight", None)
    if weight is None or hasattr(lm_head, "set_lora") or weight.shape[0] != vocab_size:
        return False
    same = weight.dtype == hidden_states.dtype in (torch.bfloat16, torch.float16)
    quantized = should_apply_lm_head_quant_method(lm_head, getattr(lm_head, "quant_method", None))
    return bool(same and not quantized)


def _in_16_bits(room: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The first half of a contiguous float32 tensor, as a 16-bit tensor of the same shape."""
    return room.view(-1).view(dtype)[: room.numel()].view(room.shape)
