"""SGLang's Triton attention without a model: what a draft-extend's CUDA graph has of it."""

from __future__ import annotations

from typing import Any

import torch


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
    return backend
