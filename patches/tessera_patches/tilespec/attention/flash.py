"""Verifications on SGLang's FlashAttention with offsets from one kernel, instead of up to fifteen."""

from typing import Any

from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend

from tessera_kernels.ops.verify.verify_offsets import VerifyOffsets, verify_offsets
from tessera_patches.core.changes import change_class
from tessera_patches.engine.attention import attends_to_chains, fuses_pages, slot_map, translates_slots
from tessera_patches.engine.page_table import build_trtllm_mha_page_table


class FusedFlash(FlashAttentionBackend):
    """``FlashAttentionBackend`` for CUDA graphs of chains, with the same buffers.

    Attributes:
        reads_no_mask: no mask is read, as verification of chains is causal attention.
        captures_no_layout: graphs read the offsets of this backend, not those of a ragged layout.
    """

    reads_no_mask = True
    captures_no_layout = True

    def _apply_cuda_graph_metadata(self, **batch: Any) -> None:
        """SGLang gives each argument by its name."""
        layout = getattr(batch["spec_info"], "ragged_verify_layout", None)
        verifies = batch["forward_mode"].is_target_verify() and batch["encoder_lens"] is None
        if not verifies or (layout is None and fuses_pages(self)):
            super()._apply_cuda_graph_metadata(**batch)
            return
        bs, req_pool_indices, seq_lens = batch["bs"], batch["req_pool_indices"], batch["seq_lens"]
        metadata = self.target_verify_metadata[bs]
        verify_lens = None if layout is None else layout.padded_to_bucket(padded_bs=bs).verify_lens
        offsets = VerifyOffsets(metadata.cache_seqlens_int32, metadata.cu_seqlens_q, metadata.cu_seqlens_k)
        verify_offsets(seq_lens[:bs], verify_lens, self.speculative_num_draft_tokens, offsets)
        build_trtllm_mha_page_table(
            req_to_token=slot_map(self),
            req_pool_indices=req_pool_indices[:bs],
            cache_seqlens=metadata.cache_seqlens_int32,
            page_table=metadata.page_table,
            page_size=self.page_size,
        )
        self.forward_metadata, self.forward_metadata_spec_decode_expand = metadata, None


def fuse_verify(backend: Any) -> None:
    """Make a target's backend a `FusedFlash` (in place), if it is plain FlashAttention for chains."""
    plain = type(backend) is FlashAttentionBackend and attends_to_chains(backend)
    if plain and not (fuses_pages(backend) and translates_slots(backend)):
        change_class(backend, FusedFlash)
