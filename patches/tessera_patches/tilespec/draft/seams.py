"""Drafting: chains and trees whose tokens can be ranked."""

from __future__ import annotations

from tessera_patches.core.places import SPECULATIVE
from tessera_patches.core.seam import Guard, Hook, Phase, Seam

SEAMS = (
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.organize_draft_results",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.draft.trees:order_nodes",
        guard=Guard.BODY,
        why="Orders the nodes of a draft tree by the probability of their paths, so that it can be cut anywhere.",
        remove_when="SGLang returns the scores of the nodes that it keeps.",
        callers=(f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft_forward",),
    ),
    Seam(
        target=f"{SPECULATIVE}.spec_utils.select_top_k_tokens",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.draft.chains:continue_chain",
        guard=Guard.BODY,
        why="Continues a chain by its last token, instead of choosing it among one.",
        remove_when="SGLang does so for draft models with a map of tokens, and for sampled drafts.",
        callers=(f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft_forward",),
        relied=(f"{SPECULATIVE}.spec_utils._select_top_k_tokens_later",),
    ),
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.build_tree_kernel_efficient",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.draft.chains:lay_out",
        guard=Guard.BODY,
        why="Lays out a chain with one kernel, instead of a tree, its links and its mask.",
        remove_when="SGLang builds no trees for chains.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.build_eagle_verify_input",),
        relied=(f"{SPECULATIVE}.eagle_info.EagleVerifyInput",),
    ),
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.per_step_draft_out_cache_loc",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.draft.chains:in_a_row",
        guard=Guard.BODY,
        why="Has draft forwards in a graph read its buffers: without copies of them, KV slots would not lie in a row.",
        remove_when="SGLang captures draft forwards without copying their inputs.",
        callers=(f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft_forward",),
        relied=("sglang.srt.model_executor.runner.eager_runner.EagerRunner.load_batch",),
    ),
    Seam(
        target="sglang.kernels.ops.speculative.topk1.draft_topk1_postprocess",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.draft.chains:pick_likeliest",
        guard=Guard.BODY,
        why="Notes how sure the draft is of each token that it picks, from the same read of its logits.",
        remove_when="SGLang keeps the probability of a chain's tokens.",
        callers=(f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft_forward",),
    ),
    Seam(
        target=f"{SPECULATIVE}.spec_utils.sample_draft_proposal",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.draft.proposals:propose",
        guard=Guard.BODY,
        why="Samples drafts with two kernels instead of eight, and notes how sure the draft was.",
        remove_when="SGLang samples drafts in one kernel that returns the greatest probability.",
        callers=(
            f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft_forward",
            f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker._draft_extend_for_decode",
        ),
    ),
)
