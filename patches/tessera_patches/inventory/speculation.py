"""Speculative decoding: rows beside a draft model's states, sizes that are chosen, and attention without a GPU."""

from __future__ import annotations

from tessera_patches.inventory.places import DRAFT_BACKENDS, LOGITS, SCHEDULER, SPECULATIVE
from tessera_patches.seam import Guard, Hook, Phase, Seam


def _draft_backend(method: str, handler: str) -> Seam:
    return Seam(
        target=f"{DRAFT_BACKENDS}.{method}",
        hook=Hook.REPLACE,
        phase=Phase.SCHEDULER,
        feature="cpu_speculation",
        handler=f"tessera_patches.cpu_speculation:{handler}",
        guard=Guard.BODY,
        why="Gives draft models attention on a machine without a GPU.",
        remove_when="SGLang's torch_native attention supports speculative decoding.",
        callers=("sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.init_attention_backend",),
    )


SEAMS = (
    Seam(
        target=f"{SPECULATIVE}.spec_info.SpeculativeAlgorithm.create_worker",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec:sized_worker",
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
            "sglang.srt.layers.attention.triton_backend.TritonAttnBackend",
            "sglang.srt.layers.attention.verify_mask.VerifyMask",
            "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode",
        ),
    ),
    Seam(
        target=f"{SCHEDULER}.init_model_worker",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec:profile",
        guard=Guard.PARAMETERS,
        why="Measures what steps cost when every graph exists and before anything is served.",
        remove_when="SGLang calls plugins when a scheduler is ready.",
        callers=(f"{SCHEDULER}.__init__",),
    ),
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.eagle_prepare_for_verify",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec:prepare_verify",
        guard=Guard.BODY,
        why="Gives the target's forward the chosen tokens of each request instead of all.",
        remove_when="SGLang verifies chains of different lengths for EAGLE, as it does for DSpark.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",),
    ),
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.eagle_sample",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec:sample",
        guard=Guard.BODY,
        why="Gives the acceptance full drafts again, cut where their verification ended, and sees what is accepted.",
        remove_when="SGLang verifies chains of different lengths for EAGLE, as it does for DSpark.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",),
    ),
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.organize_draft_results",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec_trees:order_nodes",
        guard=Guard.BODY,
        why="Orders the nodes of a draft tree by the probability of their paths, so that it can be cut anywhere.",
        remove_when="SGLang returns the scores of the nodes that it keeps.",
        callers=(f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft_forward",),
    ),
    Seam(
        target=f"{LOGITS}._get_hidden_states_to_store",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.speculative:keep_rows",
        guard=Guard.BODY,
        why="Keeps the last layer's normed states beside others that SGLang wants of a target instead.",
        remove_when="SGLang returns both.",
        callers=(f"{LOGITS}.forward",),
    ),
    Seam(
        target="sglang.srt.speculative.spec_utils.move_accept_tokens_to_target_kvcache",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="speculative_rows",
        handler="tessera_patches.speculative:move_rows",
        guard=Guard.BODY,
        why="Moves the rows of accepted drafts of a tree as their KV is moved.",
        remove_when="SGLang keeps hidden states with the KV cache.",
        callers=(
            "sglang.srt.speculative.eagle_worker_common._finalize_accept_tree_path",
            "sglang.srt.speculative.ngram_worker.NGRAMWorker.forward_batch_generation",
        ),
    ),
    Seam(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend",
        hook=Hook.REPLACE,
        phase=Phase.SCHEDULER,
        feature="cpu_speculation",
        handler="tessera_patches.cpu_speculation:TorchNativeAttnBackend",
        guard=Guard.BODY,
        why="Verifies drafted tokens on a machine without a GPU: chains and trees, whole or cut to size.",
        remove_when="SGLang's torch_native attention supports speculative decoding.",
    ),
    _draft_backend("create_decode_backend", "draft_decode_backend"),
    _draft_backend("create_draft_extend_backend", "draft_extend_backend"),
)
