"""Draft-extends on SGLang's Triton attention: offsets from one kernel, and one query for each request."""

import dataclasses
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from tessera import config
from tessera_kernels.ops.draft.extend_offsets import ExtendOffsets, extend_offsets
from tessera_patches.core.changes import change_class
from tessera_patches.engine.attention import (
    DECODE_FIELDS,
    attends_to_latents,
    extend_batch,
    is_on_cuda,
    is_plain_triton,
    slot_map,
    spreads_context,
    translates_slots,
)
from tessera_patches.engine.batches import draft_extend_lens, speculative_input
from tessera_patches.tilespec.extend.last_rows import attends_in_one_layer


class FusedExtendTriton(TritonAttnBackend):
    """``TritonAttnBackend`` for CUDA graphs of draft-extends, with offsets from one kernel instead of ten."""

    counts_accepted = False
    """Whether the KV indices of a request include its accepted tokens."""

    def _update_draft_extend_buffers(self, *args: Any) -> Any:
        bs, seq_lens, req_pool_indices, spec_info, _ = extend_batch(*args)
        extend_lens = draft_extend_lens(spec_info)
        if extend_lens is None:
            extend_lens = torch.zeros_like(seq_lens)
        width = self.num_draft_tokens
        accept_lens = spec_info.num_accept_tokens[:bs] if self.counts_accepted else None
        lens = seq_lens[:bs], extend_lens[:bs], accept_lens
        offsets = ExtendOffsets(self.qo_indptr[: bs + 1], self.kv_indptr[: bs + 1], self.cuda_graph_kv_indices)
        extend_offsets(*lens, req_pool_indices[:bs], slot_map(self), width, offsets)
        return offsets.qo_indptr, offsets.kv_indptr, width


class LastQueryTriton(FusedExtendTriton):
    """The same for a draft model of one layer, with the query of each request's last accepted token only.

    Outputs of the other tokens are not read. The kernel for decoding is faster than the one for several queries: it
    splits a request's cache among programs, and reads it once for all heads of a group.
    """

    counts_accepted = True

    def _build_cuda_graph_forward_metadata(self, bs: int, *args: Any, **kwargs: Any) -> Any:
        """Adds what decoding needs, with the greatest number of KV splits."""
        found = super()._build_cuda_graph_forward_metadata(bs, *args, **kwargs)
        decoding = super()._build_cuda_graph_forward_metadata(bs, ForwardMode.DECODE, None)
        return dataclasses.replace(found, **{name: getattr(decoding, name) for name in DECODE_FIELDS})

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Stores all keys and values. Returns ``[bs, heads * size]``; outside of graphs ``[rows, heads * size]``."""
        if self.forward_metadata.num_kv_splits is None or not forward_batch.forward_mode.is_draft_extend_v2():
            return super().forward_extend(q, k, v, layer, forward_batch, *args, **kwargs)
        queries = q[speculative_input(forward_batch).select_index]
        return self.forward_decode(queries, k, v, layer, forward_batch, *args, **kwargs)


def fuse_extend(backend: Any, model: Any) -> None:
    """Extend the backend of a draft model's draft-extends (in place), before graphs are captured.

    Only plain Triton attention on a GPU is changed, without a window.
    """
    if not is_plain_triton(backend) or not is_on_cuda(backend) or translates_slots(backend):
        return
    once = not spreads_context(backend) and not attends_to_latents(backend) and attends_in_one_layer(model)
    config.found("triton_extends")
    change_class(fuse_extend, backend, LastQueryTriton if once else FusedExtendTriton)
