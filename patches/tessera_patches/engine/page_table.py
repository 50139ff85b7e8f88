"""SGLang's kernel for page tables of FlashAttention."""

from sglang.kernels.ops.kvcache.trtllm_mha_page_table import build_trtllm_mha_page_table

__all__ = ["build_trtllm_mha_page_table"]
