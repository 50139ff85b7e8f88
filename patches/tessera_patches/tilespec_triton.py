"""Ragged chains on SGLang's Triton attention.

Its kernel takes any number of tokens of each request; only what fills the kernel's offsets knows one number for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang.srt.layers.attention.triton_backend import TritonAttnBackend


class RaggedTriton(TritonAttnBackend):
    """``TritonAttnBackend`` for CUDA graphs of ragged verifications, and for nothing else.

    A chain's tree mask is causal attention, which the kernel does by itself: no mask is written or read.
    """

    supports_ragged_verify_graph = True

    def _update_target_verify_buffers(self, bs: int, seq_lens: Any, req_pool_indices: Any, spec_info: Any) -> None:
        padded = spec_info.ragged_verify_layout.padded_to_bucket(padded_bs=bs)
        self.qo_indptr[: bs + 1] = padded.qo_indptr_device
        self._fill_kv_indptr_and_indices(bs, seq_lens, req_pool_indices, self.cuda_graph_kv_indices)

    def _build_cuda_graph_forward_metadata(self, *args: Any, **kwargs: Any) -> Any:
        metadata = super()._build_cuda_graph_forward_metadata(*args, **kwargs)
        return replace(metadata, custom_mask=None, mask_indptr=None)


def can_be_ragged(backend: Any) -> bool:
    """Whether `make_ragged` may have it: plain Triton attention, with no window and on an NVIDIA GPU's kernel."""
    plain = type(backend) is TritonAttnBackend and not backend.use_verify_splitkv and backend.dcp_size == 1
    return plain and (backend.sliding_window_size is None or backend.sliding_window_size <= 0)


def make_ragged(backend: Any) -> None:
    """Turn a backend that serves ragged graphs alone into one that can; others are left as they are."""
    if can_be_ragged(backend):
        backend.__class__ = RaggedTriton
