"""SGLang's kernels that a step launches beside its graphs."""

from __future__ import annotations

from tessera_patches.core.places import SPECULATIVE
from tessera_patches.core.seam import Guard, Hook, Phase, Seam

_OPS = "sglang.kernels.ops"
_ATTENTION = "sglang.srt.layers.attention"


def _kernel(name: str, *callers: str) -> Seam:
    return Seam(
        target=f"{_OPS}.{name}",
        hook=Hook.KERNEL,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.start.launches:cache_sglang_launches",
        guard=Guard.PARAMETERS,
        why="A launch takes a fraction of the time that Triton's function takes.",
        remove_when="Triton launches a kernel that it has compiled without looking for it.",
        callers=callers,
    )


SEAMS = (
    _kernel("attention.metadata.get_num_kv_splits_triton", f"{_ATTENTION}.triton_backend.TritonAttnBackend"),
    _kernel("attention.position.compute_position_kernel", f"{_OPS}.attention.position.compute_position_triton"),
    _kernel(
        "kvcache.kv_indices.create_flashinfer_kv_indices_triton",
        f"{_ATTENTION}.triton_backend.TritonAttnBackend",
        f"{_ATTENTION}.flashinfer_backend.FlashInferIndicesUpdaterDecode",
    ),
    _kernel(
        "kvcache.trtllm_mha_page_table.create_trtllm_mha_kv_indices_triton",
        f"{_OPS}.kvcache.trtllm_mha_page_table.build_trtllm_mha_page_table",
    ),
    _kernel(
        "speculative.cache_locs.assign_draft_cache_locs_contiguous",
        f"{SPECULATIVE}.eagle_worker_common.prepare_for_draft",
    ),
    _kernel(
        "speculative.cache_locs.assign_extend_cache_locs",
        f"{_OPS}.speculative.cache_locs.assign_extend_cache_locs_func",
        f"{SPECULATIVE}.spec_utils.move_accept_tokens_to_target_kvcache",
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
