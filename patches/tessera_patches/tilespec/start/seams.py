"""SGLang's kernels that a step launches beside its graphs."""

from tessera_patches.core.places import SPECULATIVE
from tessera_patches.core.seam import Guard, Hook, Seam

_OPS = "sglang.kernels.ops"
_ATTENTION = "sglang.srt.layers.attention"


_KV_INDICES = "create_flashinfer_kv_indices_triton"
_PAGE_TABLE = "create_trtllm_mha_kv_indices_triton"


def _kernel(name: str, *callers: str, moved: str = "") -> Seam:
    return Seam(
        target=f"{_OPS}.{name}",
        hook=Hook.KERNEL,
        feature="tilespec",
        handler="tessera_patches.tilespec.start.launches:cache_sglang_launches",
        guard=Guard.PARAMETERS,
        why="A launch takes a fraction of the time that Triton's function takes.",
        remove_when="Triton launches a kernel that it has compiled without looking for it.",
        callers=callers,
        moved=f"{_OPS}.{moved}" if moved else "",
    )


SEAMS = (
    _kernel("attention.metadata.get_num_kv_splits_triton", f"{_ATTENTION}.triton_backend.TritonAttnBackend"),
    _kernel("attention.position.compute_position_kernel", f"{_OPS}.attention.position.compute_position_triton"),
    _kernel(
        f"kvcache.kv_indices.{_KV_INDICES}",
        f"{_ATTENTION}.triton_backend.TritonAttnBackend; <0.5.22",
        f"{_ATTENTION}.flashinfer_backend.FlashInferIndicesUpdaterDecode; <0.5.22",
        "sglang.srt.mem_cache.kv_index_translator.KVIndexTranslator.pack_read_stream; >=0.5.22",
        moved=f"attention.kv_indices.{_KV_INDICES}; >=0.5.23",
    ),
    _kernel(
        f"kvcache.trtllm_mha_page_table.{_PAGE_TABLE}",
        f"{_OPS}.kvcache.trtllm_mha_page_table.build_trtllm_mha_page_table; <0.5.23",
        f"{_OPS}.attention.trtllm_mha_page_table.build_trtllm_mha_page_table; >=0.5.23",
        moved=f"attention.trtllm_mha_page_table.{_PAGE_TABLE}; >=0.5.23",
    ),
    _kernel(
        "speculative.cache_locs.assign_draft_cache_locs_contiguous",
        f"{SPECULATIVE}.eagle_worker_common.prepare_for_draft; <0.5.23",
        f"{_OPS}.speculative.cache_locs.assign_draft_cache_locs_contiguous_func; >=0.5.23",
    ),
    _kernel(
        "speculative.cache_locs.assign_extend_cache_locs",
        f"{_OPS}.speculative.cache_locs.assign_extend_cache_locs_func",
        f"{SPECULATIVE}.spec_utils.move_accept_tokens_to_target_kvcache; <0.5.23",
    ),
    _kernel(
        "speculative.cache_locs.assign_extend_cache_locs_uniform",
        f"{_OPS}.speculative.cache_locs.assign_extend_cache_locs_uniform_func",
    ),
    _kernel(
        "speculative.cache_locs.generate_draft_decode_kv_indices",
        f"{_ATTENTION}.triton_backend.TritonMultiStepDraftBackend",
    ),
    _kernel("speculative.eagle.fill_bonus_tokens", f"{_OPS}.speculative.eagle.fill_bonus_tokens_func"),
)
