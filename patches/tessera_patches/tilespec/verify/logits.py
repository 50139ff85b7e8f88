"""Logits as a product leaves them, in 16 bits, for those that read them once.

SGLang copies all of them to float32 first: of 512 rows and a vocabulary of 128k that reads 131 MB and writes 262, which
are then read in the place of 131. Kernels of acceptance and drafts widen what they read: they find the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

from tessera_patches.core.changes import replace_method


def as_multiplied(model: Any, wanted: Callable[[Any], bool]) -> None:
    """Have a model's logits ``[n, V]`` in the type of its weights in some modes (in place); as ever where more is done.

    More is done where ranks gather parts of them, where they are scaled or capped, and where the output matrix is
    quantized, adapted or padded. In a captured graph they lie where SGLang has room for those in float32, which all
    graphs share.

    Args:
        model: with SGLang's ``logits_processor``, or none.
        wanted: says of a ``ForwardMode`` whether nobody but our kernels reads its logits.
    """
    processor = getattr(model, "logits_processor", None)
    if processor is None or _does_more(processor):
        return
    original = processor._get_logits

    @functools.wraps(original)
    def get_logits(hidden_states: torch.Tensor, lm_head: Any, metadata: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        more = args or kwargs or not wanted(metadata.forward_mode)
        if more or not _plain(lm_head, hidden_states, processor.vocab_size):
            logits: torch.Tensor = original(hidden_states, lm_head, metadata, *args, **kwargs)
            return logits
        room = metadata.next_token_logits_buffer
        shape = len(hidden_states), processor.vocab_size
        out = None if room is None or room.shape != shape else _narrow(room, hidden_states.dtype)
        return torch.matmul(hidden_states, lm_head.weight.T, out=out)

    replace_method(processor, "_get_logits", get_logits)


def drafting(mode: Any) -> bool:
    """Whether a draft model drafts in this mode, or reads what was verified; not whether it reads a prompt."""
    return bool(mode.is_decode() or mode.is_draft_extend_v2())


def _does_more(processor: Any) -> bool:
    changed = processor.logit_scale, processor.final_logit_softcapping, processor.rl_on_policy_target
    gathers = processor.do_tensor_parallel_all_gather or processor.do_tensor_parallel_all_gather_dp_attn
    sanitizes = envs.SGLANG_SANITIZE_NAN_LOGITS.get()  # with numbers that 16 bits may not have
    return any(one is not None for one in changed) or gathers or processor.use_fp32_lm_head or sanitizes


def _plain(lm_head: Any, hidden_states: torch.Tensor, vocabulary: int) -> bool:
    """Whether SGLang would multiply by a matrix of 16 bits as it is."""
    weight = getattr(lm_head, "weight", None)
    if weight is None or hasattr(lm_head, "set_lora") or weight.shape[0] != vocabulary:
        return False
    same = weight.dtype == hidden_states.dtype in (torch.bfloat16, torch.float16)
    quantized = should_apply_lm_head_quant_method(lm_head, getattr(lm_head, "quant_method", None))
    return bool(same and not quantized)


def _narrow(room: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The first half of a contiguous float32 tensor, as one of the same shape in 16 bits."""
    return room.view(-1).view(dtype)[: room.numel()].view(room.shape)
