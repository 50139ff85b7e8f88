"""Latent attention (MLA) in prefills on the CPU engine. Scheduler process."""

from collections.abc import Callable
from typing import Any

from sglang.srt.models.deepseek_common.attention_backend_handler import _dispatch_mla_subtype
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod


def attend_to_latents(original: Callable[..., AttnForwardMethod], layer: Any, forward_batch: Any) -> AttnForwardMethod:
    """AROUND ``DeepseekV2AttentionMLA.dispatch_attn_forward_method``: latent attention in each prefill.

    SGLang passes keys of each head to the attention backend in a prefill without a cached prefix, but ``torch_native``
    reads the KV pool, which has latents.
    """
    chosen = original(layer, forward_batch)
    if chosen is not AttnForwardMethod.MHA:
        return chosen
    latents: AttnForwardMethod = _dispatch_mla_subtype(layer, forward_batch)
    return latents
