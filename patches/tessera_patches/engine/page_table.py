"""SGLang's kernel for page tables of FlashAttention."""

from importlib.util import find_spec

if find_spec("sglang.kernels.ops.attention.trtllm_mha_page_table"):  # since 0.5.23
    from sglang.kernels.ops.attention.trtllm_mha_page_table import build_trtllm_mha_page_table
else:
    from sglang.kernels.ops.kvcache.trtllm_mha_page_table import build_trtllm_mha_page_table

__all__ = ["build_trtllm_mha_page_table"]
