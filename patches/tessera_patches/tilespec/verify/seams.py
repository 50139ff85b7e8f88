"""Verification: penalties that count tokens."""

from __future__ import annotations

from tessera_patches.core.places import SAMPLING, SCHEDULER, SPECULATIVE
from tessera_patches.core.seam import Guard, Hook, Phase, Seam

SEAMS = (
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
)
