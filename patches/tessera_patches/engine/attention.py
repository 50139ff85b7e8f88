"""SGLang's attention backends, and graphs of them."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sglang.srt.layers.attention.triton_backend import ForwardMetadata, TritonAttnBackend

from tessera_patches.core.changes import TemporaryFields

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.layers.attention.verify_mask import VerifyMask
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker


def backend_of(runner: ModelRunner | DecodeCudaGraphRunner) -> AttentionBackend:
    """The attention backend of a model, or of its graphs."""
    return runner.attn_backend


def extend_backend(drafts: EagleDraftWorker) -> AttentionBackend | None:
    """The attention backend of draft-extends; None if they have none of their own."""
    return drafts.draft_extend_attn_backend


def decode_graphs(runner: ModelRunner) -> DecodeCudaGraphRunner | None:
    """The CUDA graphs of a model's decode steps and verifications; None without any."""
    return runner.decode_cuda_graph_runner


def with_graphs(runner: ModelRunner, graphs: DecodeCudaGraphRunner) -> TemporaryFields:
    """Run a model on other graphs, with their attention backend, in a ``with`` block."""
    return TemporaryFields(with_graphs, runner, decode_cuda_graph_runner=graphs, attn_backend=backend_of(graphs))


def slot_map(backend: TritonAttnBackend) -> torch.Tensor:
    """``req_to_token``, ``[requests, context]`` int32."""
    slots: torch.Tensor = backend.req_to_token
    return slots


def new_backend(runner: ModelRunner) -> AttentionBackend:
    """Attention of a model with a workspace of its own, as that of graphs is made."""
    with TemporaryFields(new_backend, runner, init_new_workspace=runner.init_new_workspace):  # which the next line sets
        return runner._get_attention_backend(init_new_workspace=True)


def supports_ragged_graphs(backend: AttentionBackend) -> bool:
    """Whether SGLang's own graphs verify drafts of different lengths."""
    return bool(backend.supports_ragged_verify_graph)


def mask_buffer(backend: AttentionBackend) -> torch.Tensor | None:
    """Where the masks of a verification are written, uint8 ``[elements]``; None where each has a tensor of its own."""
    mask: VerifyMask | None = backend.verify_mask
    return None if mask is None else mask.buffer


def is_plain_triton(backend: TritonAttnBackend) -> bool:
    """Whether it is plain Triton attention without a window."""
    plain = type(backend) is TritonAttnBackend
    return plain and (backend.sliding_window_size is None or backend.sliding_window_size <= 0)


def spreads_context(backend: TritonAttnBackend) -> bool:
    """Whether the KV of one request is spread over ranks."""
    return bool(backend.dcp_size > 1)


def splits_verification(backend: TritonAttnBackend) -> bool:
    """Whether verifications split a request's cache among programs."""
    return bool(backend.use_verify_splitkv)


def attends_to_latents(backend: TritonAttnBackend) -> bool:
    """Whether the KV are latents (MLA)."""
    return bool(backend.use_mla)


def is_on_cuda(backend: TritonAttnBackend) -> bool:
    """Whether it computes on a GPU."""
    device: torch.device = torch.device(backend.device)
    return device.type == "cuda"


_OF_DECODES = {"attn_logits", "attn_lse", "num_kv_splits", "lean_Mp", "lean_Lp", "lean_Op", "lean_locks"}
DECODE_FIELDS = tuple({*_OF_DECODES, "uneven_batch"} & ForwardMetadata.__dataclass_fields__.keys())
"""What Triton attention needs for decoding, beside what it needs for several queries of a request."""


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

    def translates_slots(backend: TritonAttnBackend) -> bool:
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
