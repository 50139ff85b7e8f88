"""TileSpec: the worker, what a step leaves for the next one, and counts for answers."""

from __future__ import annotations

from tessera_patches.core.places import LOGITS, MANAGERS, SCHEDULER, SPECULATIVE, TOKENIZER
from tessera_patches.core.seam import Guard, Hook, Phase, Seam

SEAMS = (
    Seam(
        target=f"{SPECULATIVE}.spec_info.SpeculativeAlgorithm.create_worker",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:sized_worker",
        guard=Guard.PARAMETERS,
        why="Drafts and verifies a number of tokens that is chosen in every step.",
        remove_when="SGLang lets plugins choose the worker (get_platform_worker_cls in 0.5.23).",
        callers=(f"{SCHEDULER}.maybe_init_draft_worker",),
        relied=(
            f"{SPECULATIVE}.eagle_worker_v2.EAGLEWorkerV2",
            f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker",
            f"{SPECULATIVE}.standalone_worker_v2.StandaloneWorkerV2",
            f"{SPECULATIVE}.standalone_worker_v2.StandaloneDraftWorker",
            f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",
            f"{SPECULATIVE}.ragged_verify.RaggedVerifyLayout",
            "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner",
            f"{SPECULATIVE}.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner",
            f"{SPECULATIVE}.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner",
            "sglang.srt.layers.logits_processor.LogitsMetadata.from_forward_batch",
            f"{LOGITS}._get_pruned_states",
            f"{LOGITS}._copy_logits_to_buffer",
            f"{LOGITS}._get_logits",
            f"{LOGITS}._compute_lm_head",
            "sglang.srt.layers.attention.triton_backend.TritonAttnBackend",
            "sglang.srt.layers.attention.flashattention_backend.FlashAttentionBackend._apply_cuda_graph_metadata",
            "sglang.kernels.ops.kvcache.trtllm_mha_page_table.build_trtllm_mha_page_table",
            "sglang.srt.layers.attention.verify_mask.VerifyMask",
            "sglang.srt.models.llama.LlamaAttention",
            "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode",
        ),
    ),
    Seam(
        target=f"{TOKENIZER}._calculate_spec_decoding_metrics",
        hook=Hook.AFTER,
        phase=Phase.MAIN,
        feature="tilespec",
        handler="tessera_patches.tilespec.counts:count_drafts",
        guard=Guard.BODY,
        why="Counts the drafts of each request that were verified: SGLang multiplies steps by the longest draft.",
        remove_when="SGLang counts them when drafts have different lengths.",
        callers=(f"{TOKENIZER}._handle_batch_output",),
    ),
    Seam(
        target=f"{MANAGERS}.overlap_utils.FutureMap.stash",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.relay:stash",
        guard=Guard.BODY,
        why="Keeps drafts for the next step with one kernel instead of five.",
        remove_when="SGLang scatters them in one launch, as it gathers them.",
        callers=(f"{SCHEDULER}._relay_forward_payload",),
        relied=(
            f"{MANAGERS}.overlap_utils.FutureMap._lazy_init_forward_buf",
            f"{MANAGERS}.overlap_utils.RelayPayload",
        ),
    ),
)
