"""TileSpec: its worker, what is verified, what a step leaves for the next one, and counts for answers."""

from tessera_patches.core.places import (
    BATCH,
    DRAFT_INPUT,
    LOGITS_OUTPUT,
    MANAGERS,
    SCHEDULER,
    SPECULATIVE,
    TOKENIZER,
    VERIFY_INPUT,
    WORKERS,
)
from tessera_patches.core.seam import Guard, Hook, Phase, Runs, Seam

_LAYOUT = f"{SPECULATIVE}.ragged_verify.RaggedVerifyLayout"
_STANDALONE = f"{SPECULATIVE}.standalone_worker_v2"
RESERVED = "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode"

SEAMS = (
    Seam(
        target=f"{SPECULATIVE}.spec_info.SpeculativeAlgorithm.create_worker",
        hook=Hook.AROUND,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:adaptive_worker",
        guard=Guard.PARAMETERS,
        why="Drafts and verifies a number of tokens that is chosen in every step.",
        remove_when="SGLang lets plugins choose the worker (get_platform_worker_cls in 0.5.23).",
        callers=(f"{SCHEDULER}.maybe_init_draft_worker",),
        relied=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify", RESERVED),
        runs=Runs.START,
    ),
    *(
        Seam(
            target=worker,
            hook=Hook.SUBCLASS,
            feature="tilespec",
            handler=f"tessera_patches.tilespec.workers:{handler}",
            why="The worker, with a number of drafted and of verified tokens that changes every step.",
            remove_when="SGLang lets plugins choose these numbers in its adaptive mode.",
            relied=(f"{SPECULATIVE}.adaptive_runtime_state.AdaptiveController",),
            writes=(f"{MANAGERS}.utils.GenerationBatchResult.cap_lens", f"{DRAFT_INPUT}.draft_probs"),
            runs=Runs.START,
            runs_with=drafts,
        )
        for handler, worker, drafts in (
            ("EagleChainWorker", f"{WORKERS}.EAGLEWorkerV2", "eagle_chains"),
            ("EagleTreeWorker", f"{WORKERS}.EAGLEWorkerV2", "eagle_trees"),
            ("StandaloneChainWorker", f"{_STANDALONE}.StandaloneWorkerV2", "standalone_chains"),
            ("StandaloneTreeWorker", f"{_STANDALONE}.StandaloneWorkerV2", "standalone_trees"),
        )
    ),
    *(
        Seam(
            target=drafts,
            hook=Hook.VALUE,
            feature="tilespec",
            handler=f"tessera_patches.tilespec.workers:{kind}Drafts",
            why="While a worker is made: it makes our draft worker, of a class that extends the one that it names.",
            remove_when="SGLang lets plugins choose the draft worker.",
            callers=(f"{worker}.__init__",),
            runs=Runs.START,
            runs_with=f"{kind.lower()}_chains, {kind.lower()}_trees",
        )
        for kind, drafts, worker in (
            ("Eagle", f"{WORKERS}.EagleDraftWorker", f"{WORKERS}.EAGLEWorkerV2"),
            ("Standalone", f"{_STANDALONE}.StandaloneDraftWorker", f"{_STANDALONE}.StandaloneWorkerV2"),
        )
    ),
    *(
        Seam(
            target=worker,
            hook=Hook.SUBCLASS,
            feature="tilespec",
            handler=f"tessera_patches.tilespec.workers:{handler}{kind.capitalize()}Drafts",
            why=f"The draft worker of {kind}s says how sure it is of each token.",
            remove_when="SGLang keeps the probabilities of drafted tokens.",
            runs=Runs.START,
            runs_with=f"{handler.lower()}_{kind}s",
        )
        for kind in ("chain", "tree")
        for handler, worker in (
            ("Eagle", f"{WORKERS}.EagleDraftWorker"),
            ("Standalone", f"{_STANDALONE}.StandaloneDraftWorker"),
        )
    ),
    Seam(
        target=f"{WORKERS}.EAGLEWorkerV2.adaptive_controller",
        hook=Hook.VALUE,
        feature="tilespec",
        handler="tessera_patches.tilespec.worker:AdaptiveWorker",
        guard=Guard.FIELD,
        why="While graphs are captured: SGLang builds what each number of drafted tokens needs for a controller.",
        remove_when="SGLang lets plugins choose these numbers in its adaptive mode.",
        runs=Runs.START,
        callers=(f"{WORKERS}.EAGLEWorkerV2.init_cuda_graphs",),
    ),
    Seam(
        target="sglang.srt.runtime_context.RuntimeContext._overrides_log",
        hook=Hook.OBJECT,
        feature="tilespec",
        handler="tessera_patches.tilespec.worker:RuntimeStates",
        guard=Guard.FIELD,
        why="Forgets a line for each step that drafts another number of tokens than the one before: SGLang keeps all.",
        remove_when="SGLang keeps the last one alone.",
        runs=Runs.START,
        callers=("sglang.srt.runtime_context.RuntimeContext.override",),
        relied=(f"{WORKERS}.EAGLEWorkerV2.apply_runtime_state",),
    ),
    Seam(
        target=f"{WORKERS}.logger",
        hook=Hook.OBJECT,
        feature="tilespec",
        handler="tessera_patches.tilespec.worker:AdaptiveWorker",
        why="Leaves out the line that SGLang logs whenever the number of drafted tokens changes.",
        remove_when="SGLang logs it for debugging alone.",
        runs=Runs.START,
        relied=(f"{WORKERS}.EAGLEWorkerV2.apply_runtime_state",),
    ),
    Seam(
        target=f"{TOKENIZER}._calculate_spec_decoding_metrics",
        hook=Hook.AFTER,
        phase=Phase.MAIN,
        feature="tilespec",
        handler="tessera_patches.tilespec.counts:count_drafts",
        why="Counts the drafts of each request that were verified: SGLang multiplies steps by the longest draft.",
        remove_when="SGLang counts them when drafts have different lengths.",
        runs=Runs.REQUEST,
        callers=(f"{TOKENIZER}._handle_batch_output",),
    ),
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.eagle_prepare_for_verify",
        hook=Hook.AROUND,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:prepare_verify",
        why="Gives the target's forward the chosen tokens of each request instead of all.",
        remove_when="SGLang verifies chains of different lengths for EAGLE, as it does for DSpark.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",),
        relied=(_LAYOUT,),
        writes=(
            f"{SPECULATIVE}.spec_info.SpecInput.ragged_verify_layout",
            f"{VERIFY_INPUT}.positions",
            f"{VERIFY_INPUT}.seq_lens_cpu",
            f"{VERIFY_INPUT}.seq_lens_sum",
            f"{VERIFY_INPUT}.custom_mask",
            f"{BATCH}.input_ids",
            f"{BATCH}.out_cache_loc",
            f"{BATCH}.forward_mode",
        ),
        runs=Runs.DECODE,
    ),
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.eagle_sample",
        hook=Hook.AROUND,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:sample",
        why="Accepts chains from the rows that were verified, or gives SGLang full drafts again, cut where they ended.",
        remove_when="SGLang verifies chains of different lengths for EAGLE, as it does for DSpark.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",),
        relied=(f"{SPECULATIVE}.eagle_utils._verify_coins", "sglang.srt.utils.async_probe.sanitize_nan_logits"),
        writes=(f"{LOGITS_OUTPUT}.next_token_logits", f"{LOGITS_OUTPUT}.hidden_states"),
        runs=Runs.DECODE,
    ),
    Seam(
        target=f"{SPECULATIVE}.spec_utils.commit_mamba_states_after_verify",
        hook=Hook.REPLACE,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:commit_no_states",
        why="Looks for states like Mamba's in no step, as SGLang does: models that have them are refused.",
        remove_when="SGLang knows from the start whether a model has some.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",),
        runs=Runs.DECODE,
    ),
)
