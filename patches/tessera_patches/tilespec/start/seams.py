"""The start: steps are measured, and what is watched from when it has ended."""

from tessera_patches.core.places import DRAFT_INPUT, RUNNER, SCHEDULER, SPECULATIVE
from tessera_patches.core.seam import Guard, Hook, Runs, Seam

SEAMS = (
    Seam(
        target=f"{SCHEDULER}.init_model_worker",
        hook=Hook.AFTER,
        feature="tilespec",
        handler="tessera_patches.tilespec.start.deciders:give_decider",
        guard=Guard.PARAMETERS,
        why="Measures what steps cost when every graph exists and before anything is served.",
        remove_when="SGLang calls plugins when a scheduler is ready.",
        callers=(f"{SCHEDULER}.__init__",),
        relied=(
            "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
            "sglang.srt.mem_cache.allocation.alloc_for_spec_decode",
            f"{SPECULATIVE}.eagle_utils.get_draft_recurrent_hidden_state_spec",
            f"{SPECULATIVE}.eagle_utils.get_draft_recurrent_hidden_state_spec_from_config; >=0.5.23",
            f"{SPECULATIVE}.ragged_verify.RaggedVerifyLayout",
        ),
        writes=(
            f"{RUNNER}.war_fastpath_read_done_event; <0.5.18",
            f"{RUNNER}.shared_read_done_event; >=0.5.18",
            f"{DRAFT_INPUT}.bonus_tokens",
            "sglang.srt.mem_cache.memory_pool.ReqToTokenPool.req_to_token",
            "sglang.srt.model_executor.runner_utils.buffers.DecodeInputBuffers.input_ids",
            f"{SPECULATIVE}.eagle_draft_cuda_graph_runner.EagleDraftInputBuffers.topk_index",
            f"{SPECULATIVE}.eagle_draft_cuda_graph_runner.EagleDraftInputBuffers.hidden_states",
            f"{SPECULATIVE}.eagle_draft_extend_cuda_graph_runner.EagleDraftExtendInputBuffers.hidden_states",
        ),
        runs=Runs.START,
        differs="The event of a step's last read has another name.",
    ),
    Seam(
        target="triton.knobs.compilation_knobs.listener",
        hook=Hook.METHOD,
        feature="tilespec",
        handler="tessera_patches.tilespec.start.late_compiles:warn",
        guard=Guard.FIELD,
        why="Triton's, of the whole process: warns of kernels that are compiled while requests wait.",
        remove_when="SGLang warns of kernels that are compiled while requests wait.",
        called_by="A kernel that is compiled while requests wait.",
        callers=("triton.compiler.compiler.compile",),
    ),
)
