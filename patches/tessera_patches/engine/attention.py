"""SGLang's attention backends, and graphs of them."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sglang.srt.layers.attention.triton_backend import ForwardMetadata, TritonAttnBackend

from tessera_patches.core.changes import TemporaryFields

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
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


_OF_DECODES = {"attn_logits", "attn_lse", "num_kv_splits", "lean_Mp", "lean_Lp", "lean_Op", "lean_locks"}
DECODE_FIELDS = tuple({*_OF_DECODES, "uneven_batch"} & ForwardMetadata.__dataclass_fields__.keys())
"""What Triton attention needs for decoding, beside what it needs for several queries of a request."""


def fuses_pages(backend: FlashAttentionBackend) -> bool:
    """Whether one kernel fills offsets and page table of a verification whose drafts have one length."""
    return hasattr(backend, "_set_decode_page_metadata")


class GraphBatch(NamedTuple):
    """A batch whose offsets Triton attention fills in before it replays a graph.

    Attributes:
        bs: its requests, with those of padding.
        seq_lens: their tokens, ``[bs]``.
        rows: their rows of the slot map, ``[bs]``.
        spec_info: its speculative input.
        plan: SGLang's plan of its slots; None up to 0.5.21.
    """

    bs: int
    seq_lens: torch.Tensor
    rows: torch.Tensor
    spec_info: Any
    plan: Any = None


if "plan" in signature(TritonAttnBackend._update_target_verify_buffers).parameters:  # since 0.5.22

    def verify_batch(*args: Any) -> GraphBatch:
        """From the arguments of ``_update_target_verify_buffers``."""
        plan, bs, seq_lens, spec_info, rows = args
        return GraphBatch(bs, seq_lens, rows, spec_info, plan)

    def extend_batch(*args: Any) -> GraphBatch:
        """From the arguments of ``_update_draft_extend_buffers``."""
        plan, bs, seq_lens, _, spec_info, rows = args
        return GraphBatch(bs, seq_lens, rows, spec_info, plan)

    def fill_slots(backend: TritonAttnBackend, batch: GraphBatch) -> None:
        """Fill in which slots a batch reads."""
        bs, seq_lens, rows, _, plan = batch
        backend._fill_kv_indptr_and_indices(plan, bs, seq_lens, rows, backend.cuda_graph_kv_indices)

    def translates_slots(backend: FlashAttentionBackend | TritonAttnBackend) -> bool:
        """Whether a slot's index in the tensors of the KV pool differs from that in ``req_to_token``."""
        translator: KVIndexTranslator = backend.kv_index_translator
        return bool(translator.is_translating)

else:

    def verify_batch(*args: Any) -> GraphBatch:
        """From the arguments of ``_update_target_verify_buffers``."""
        bs, seq_lens, rows, spec_info = args
        return GraphBatch(bs, seq_lens, rows, spec_info)

    def extend_batch(*args: Any) -> GraphBatch:
        """From the arguments of ``_update_draft_extend_buffers``."""
        bs, seq_lens, rows, _, spec_info = args
        return GraphBatch(bs, seq_lens, rows, spec_info)

    def fill_slots(backend: TritonAttnBackend, batch: GraphBatch) -> None:
        """Fill in which slots a batch reads."""
        bs, seq_lens, rows, *_ = batch
        backend._fill_kv_indptr_and_indices(bs, seq_lens, rows, backend.cuda_graph_kv_indices)

    def translates_slots(backend: TritonAttnBackend) -> bool:
        """Whether a slot's index in the tensors of the KV pool differs from that in ``req_to_token``."""
        return backend._translate_kv_loc is not None
