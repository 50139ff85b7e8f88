"""Draft-extends on SGLang's Triton attention whose offsets one kernel fills, in the place of ten small ones."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

from tessera_kernels.extend_offsets import ExtendOffsets, extend_offsets


class FusedExtendTriton(TritonAttnBackend):
    """``TritonAttnBackend`` for CUDA graphs of draft-extends. What these have captured, its buffers, stays."""

    def _update_draft_extend_buffers(
        self, bs: int, seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, forward_mode: Any, spec_info: Any
    ) -> Any:
        extend_lens = getattr(spec_info, "extend_seq_lens_tensor", None)
        if extend_lens is None or not forward_mode.is_draft_extend_v2():
            return super()._update_draft_extend_buffers(bs, seq_lens, req_pool_indices, forward_mode, spec_info)
        width = self.num_draft_tokens
        offsets = ExtendOffsets(self.qo_indptr[: bs + 1], self.kv_indptr[: bs + 1], self.cuda_graph_kv_indices)
        extend_offsets(seq_lens[:bs], extend_lens[:bs], req_pool_indices[:bs], self.req_to_token, width, offsets)
        return offsets.qo_indptr, offsets.kv_indptr, width


def fuse_extend(backend: Any) -> None:
    """Turn a backend of draft-extends into a `FusedExtendTriton`; others than plain ones on a GPU stay as they are."""
    if type(backend) is TritonAttnBackend and torch.device(backend.device).type == "cuda":
        backend.__class__ = FusedExtendTriton
