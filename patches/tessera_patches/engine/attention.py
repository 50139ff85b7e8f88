"""SGLang's attention backends, and graphs of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tessera_patches.core.changes import TemporaryFields

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker


def backend_of(runner: ModelRunner | DecodeCudaGraphRunner) -> AttentionBackend:
    """The attention of a model, or of its graphs."""
    return runner.attn_backend


def extend_backend(drafts: EagleDraftWorker) -> AttentionBackend | None:
    """The attention of draft-extends; None where they have none of their own."""
    return drafts.draft_extend_attn_backend


def decode_graphs(runner: ModelRunner) -> DecodeCudaGraphRunner | None:
    """The CUDA graphs of a model's decode steps and verifications; None without any."""
    return runner.decode_cuda_graph_runner


def with_graphs(runner: ModelRunner, graphs: DecodeCudaGraphRunner) -> TemporaryFields:
    """Run a model on other graphs, with their attention backend, in a ``with`` block."""
    return TemporaryFields(runner, decode_cuda_graph_runner=graphs, attn_backend=backend_of(graphs))


def slot_map(backend: FlashAttentionBackend | TritonAttnBackend) -> torch.Tensor:
    """``req_to_token``, ``[requests, context]`` int32."""
    slots: torch.Tensor = backend.req_to_token
    return slots


def translates_slots(backend: TritonAttnBackend) -> bool:
    """Whether a slot's index in the tensors of the KV pool differs from that in ``req_to_token``."""
    return backend._translate_kv_loc is not None
