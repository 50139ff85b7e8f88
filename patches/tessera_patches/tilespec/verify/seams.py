"""Verification: the tokens that are verified, what is accepted of them, and penalties that count tokens."""

from __future__ import annotations

from tessera_patches.core.places import SAMPLING, SCHEDULER, SPECULATIVE
from tessera_patches.core.seam import Guard, Hook, Phase, Seam

SEAMS = (
    Seam(
        target=f"{SPECULATIVE}.eagle_utils.eagle_prepare_for_verify",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:prepare_verify",
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
        handler="tessera_patches.tilespec.entry:sample",
        guard=Guard.BODY,
        why="Accepts chains from the rows that were verified, or gives SGLang full drafts again, cut where they ended.",
        remove_when="SGLang verifies chains of different lengths for EAGLE, as it does for DSpark.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",),
        relied=(f"{SPECULATIVE}.eagle_utils._verify_coins",),
    ),
    Seam(
        target=f"{SAMPLING}.penaltylib.orchestrator.BatchedPenalizerOrchestrator.__init__",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.verify.penalties:count_outputs",
        guard=Guard.BODY,
        why="Penalties count every token that a request has, whatever steps they came in.",
        remove_when="SGLang's penalizers count accepted tokens (pull request 33643), drafts before a token included.",
        relied=(
            f"{SAMPLING}.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
            f"{SAMPLING}.penaltylib.orchestrator._BatchedPenalizer",
            f"{SAMPLING}.penaltylib.orchestrator.BatchedPenalizerOrchestrator.cumulate_output_tokens",
            f"{SAMPLING}.penaltylib.orchestrator.BatchedPenalizerOrchestrator.filter",
            f"{SAMPLING}.penaltylib.orchestrator.BatchedPenalizerOrchestrator.merge",
            f"{SPECULATIVE}.eagle_utils.eagle_prepare_for_decode",
        ),
    ),
    Seam(
        target=f"{SAMPLING}.sampling_batch_info.SamplingBatchInfo.copy_for_forward",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.verify.penalties:with_penalties",
        guard=Guard.BODY,
        why="Gives a forward the counts, for each draft token has penalties of its own.",
        remove_when="SGLang's penalizers count accepted tokens (pull request 33643), drafts before a token included.",
        callers=(f"{SCHEDULER}._forward_isolation",),
        relied=(f"{SAMPLING}.sampling_batch_info.SamplingBatchInfo.update_penalties",),
    ),
    Seam(
        target=f"{SAMPLING}.sampling_batch_info.SamplingBatchInfo.apply_logits_bias",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.verify.penalties:penalize",
        guard=Guard.BODY,
        why="The same penalties for the token after a prompt, also of a request that was retracted.",
        remove_when="SGLang's penalizers count accepted tokens (pull request 33643), drafts before a token included.",
        callers=("sglang.srt.model_executor.model_runner.ModelRunner._preprocess_logits",),
    ),
    Seam(
        target=f"{SPECULATIVE}.spec_utils.commit_mamba_states_after_verify",
        hook=Hook.REPLACE,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:commit_no_states",
        guard=Guard.BODY,
        why="Looks for states like Mamba's in no step, as SGLang does: models that have them are refused.",
        remove_when="SGLang knows from the start whether a model has some.",
        callers=(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify",),
    ),
)
