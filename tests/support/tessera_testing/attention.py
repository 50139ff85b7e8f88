"""SGLang's attention without a model: what CUDA graphs of draft-extends and verifications have of it."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch

OFF = (
    *("dllm_attention", "dllm_block_size", "is_draft_runner", "use_dense_fp8_chunked_prefill", "use_verify_shared_kv"),
    *("cuda_graph_lean_Mp", "cuda_graph_lean_Lp", "cuda_graph_lean_Op", "cuda_graph_lean_locks"),
    "cuda_graph_uneven_batch",
)
"""What plain attention does without. Up to 0.5.21 nothing reads these."""


def extending(kind: Any, table: torch.Tensor, slots: int, width: int) -> Any:
    """A ``TritonAttnBackend`` with the static buffers of its graphs, and no model runner.

    Args:
        kind: its class, or one of ours.
        table: int32 ``[rows of the pool, positions]``: the KV slot of each position.
        slots: requests that there is room for.
        width: tokens of each that are read.
    """
    backend, device = kind.__new__(kind), table.device
    backend.num_draft_tokens, backend.speculative_num_steps = width, width - 1
    backend.device, backend.req_to_token = device, table
    backend.qo_indptr = torch.zeros(slots + 1, dtype=torch.int64, device=device)
    backend.kv_indptr = torch.zeros(slots + 1, dtype=torch.int32, device=device)
    backend.cuda_graph_kv_indices = torch.zeros(slots * table.shape[1], dtype=torch.int64, device=device)
    backend.sliding_window_size = None
    vars(backend).update(dict.fromkeys(OFF) | {"enable_lean_attention": False})
    vars(backend).update(slots_of(table))
    return backend


def extend_of(mode: Any, drafts: Any, slots: torch.Tensor) -> Any:
    """A batch of a draft-extend, as far as attention reads it; its new tokens go to these KV slots."""
    unread = ("out_cache_loc_is_physical", "mha_one_shot", "attn_attend_prefix_cache", "extend_seq_lens_cpu")
    return SimpleNamespace(forward_mode=mode, spec_info=drafts, out_cache_loc=slots, **dict.fromkeys(unread))


def slots_of(table: torch.Tensor, *, translated: bool = False) -> dict[str, Any]:
    """The attributes by which a backend finds KV slots.

    Args:
        table: int32 ``[rows of the pool, positions]``: the KV slot of each position.
        translated: whether those of the pool differ. Then nothing can be read, only what a backend becomes is seen.
    """
    try:
        from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
    except ImportError:  # up to 0.5.21
        return {"_translate_kv_loc": print if translated else None}
    if translated:
        return {"kv_index_translator": SimpleNamespace(is_translating=True)}
    pool = {"token_to_kv_pool_allocator": None, "token_to_kv_pool": None, "page_size": 1}
    return {"kv_index_translator": KVIndexTranslator(req_to_token=table, device=str(table.device), **pool)}


def arguments(method: Any, **batch: Any) -> dict[str, Any]:
    """Those that the installed SGLang's method has, in its order: each from the batch, else None."""
    _, *names = signature(method).parameters
    return {name: batch.get(name) for name in names}
