"""Ragged verification on SGLang's Triton attention.

Its kernel supports any number of tokens for each request; the code that fills its offsets supports one number for all.
"""

from dataclasses import replace
from typing import Any

import msgspec
import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

from tessera import config
from tessera_patches.core.changes import change_class
from tessera_patches.engine.attention import (
    fill_slots,
    is_plain_triton,
    splits_verification,
    spreads_context,
    verify_batch,
)
from tessera_patches.tilespec.step import Step


class RaggedTriton(TritonAttnBackend):
    """``TritonAttnBackend`` for CUDA graphs of ragged verifications only.

    Verification of chains is causal attention, without a mask. The mask of trees is written into this backend's buffer
    before a graph is replayed: `tessera_patches.tilespec.verify.prune.prune_trees`.
    """

    supports_ragged_verify_graph = True
    _verify_mask: Any

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Also enlarges the mask, as a single slot of padding may have all tokens of a graph."""
        super().init_cuda_graph_state(max_bs, max_num_tokens, *args, **kwargs)
        padding = max_num_tokens * (max_num_tokens + self.get_cuda_graph_seq_len_fill_value())
        if self.topk > 1 and self._verify_mask.buffer.numel() < padding:
            buffer = torch.zeros(padding, dtype=torch.uint8, device=self.device)
            self._verify_mask = msgspec.structs.replace(self._verify_mask, buffer=buffer)

    def _update_target_verify_buffers(self, *args: Any) -> None:
        batch = verify_batch(*args)
        bs, _, _, drafts, _ = batch
        padded = drafts.ragged_verify_layout.padded_to_bucket(padded_bs=bs)
        self.qo_indptr[: bs + 1] = padded.qo_indptr_device
        fill_slots(self, batch)
        step = Step.of(drafts)
        if step is not None and step.mask_indptr is not None:
            # Slots of padding read the beginning of the mask; their output is not read.
            self.mask_indptr[: bs + 1].zero_()
            self.mask_indptr[: len(step.mask_indptr)] = step.mask_indptr

    def _build_cuda_graph_forward_metadata(self, *args: Any, **kwargs: Any) -> Any:
        metadata = super()._build_cuda_graph_forward_metadata(*args, **kwargs)
        return metadata if self.topk > 1 else replace(metadata, custom_mask=None, mask_indptr=None)


def can_be_ragged(backend: Any) -> bool:
    """Whether `make_ragged` supports a backend: plain Triton attention without a window, on an NVIDIA GPU."""
    return is_plain_triton(backend) and not splits_verification(backend) and not spreads_context(backend)


def make_ragged(backend: Any) -> None:
    """Make a backend a `RaggedTriton` (in place), if it can be. No other graphs may use it."""
    if can_be_ragged(backend):
        config.found("ragged_triton")
        change_class(make_ragged, backend, RaggedTriton)
