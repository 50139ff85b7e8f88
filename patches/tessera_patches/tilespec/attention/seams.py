"""Attention of verifications."""

from tessera_patches.core.places import TRITON
from tessera_patches.core.seam import Guard, Hook, Seam

_REGISTRY = "sglang.srt.layers.attention.attention_registry"

SEAMS = (
    Seam(
        target="sglang.srt.layers.attention.flashattention_backend.FlashAttentionBackend",
        hook=Hook.CLASS,
        feature="tilespec",
        handler="tessera_patches.tilespec.attention.flash:fuse_verify",
        guard=Guard.PARAMETERS,
        why="Offsets of verifications from one kernel instead of up to fifteen.",
        remove_when="SGLang fills them with one kernel.",
        callers=(f"{_REGISTRY}.create_flashattention_v3_backend", f"{_REGISTRY}.create_flashattention_v4_backend"),
        relied=(
            "sglang.srt.layers.attention.flashattention_backend.FlashAttentionBackend._apply_cuda_graph_metadata",
            "sglang.kernels.ops.kvcache.trtllm_mha_page_table.build_trtllm_mha_page_table; <0.5.23",
            "sglang.kernels.ops.attention.trtllm_mha_page_table.build_trtllm_mha_page_table; >=0.5.23",
        ),
        differs="The kernel for page tables lies elsewhere; offsets of drafts of one length are filled by one kernel.",
    ),
    Seam(
        target=TRITON,
        hook=Hook.CLASS,
        feature="tilespec",
        handler="tessera_patches.tilespec.attention.triton:make_ragged",
        why="Attention of verifications whose requests have different numbers of tokens.",
        remove_when="SGLang's Triton attention has ragged verification.",
        callers=(f"{_REGISTRY}.create_triton_backend",),
        relied=("sglang.srt.layers.attention.verify_mask.VerifyMask",),
    ),
)
