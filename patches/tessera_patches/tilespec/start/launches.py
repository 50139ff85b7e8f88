"""SGLang's own Triton kernels between the graphs of a step, launched as fast as ours."""

from __future__ import annotations

from importlib import import_module

import torch

from tessera_kernels.triton.device.launch import hasten

_OPS = "sglang.kernels.ops"
KERNELS = (
    f"{_OPS}.attention.metadata:get_num_kv_splits_triton",
    f"{_OPS}.attention.position:compute_position_kernel",
    f"{_OPS}.kvcache.kv_indices:create_flashinfer_kv_indices_triton",
    f"{_OPS}.kvcache.trtllm_mha_page_table:create_trtllm_mha_kv_indices_triton",
    f"{_OPS}.speculative.cache_locs:assign_draft_cache_locs_contiguous",
    f"{_OPS}.speculative.cache_locs:assign_extend_cache_locs",
    f"{_OPS}.speculative.cache_locs:assign_extend_cache_locs_uniform",
    f"{_OPS}.speculative.cache_locs:generate_draft_decode_kv_indices",
    f"{_OPS}.speculative.eagle:fill_bonus_tokens",
)
"""What a step launches besides its graphs, as module and name."""


def hasten_sglang(device: str) -> None:
    """Have these take the short way in this process; only on a GPU there is one."""
    if torch.device(device).type != "cuda":
        return
    for kernel in KERNELS:
        module, name = kernel.split(":")
        hasten(getattr(import_module(module), name))
