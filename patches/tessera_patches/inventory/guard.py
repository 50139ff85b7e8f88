"""Requests that would end the scheduler: installed with any feature."""

from __future__ import annotations

from tessera_patches.seam import Guard, Hook, Phase, Seam

_LOGPROBS = "sglang.srt.layers.logprob_processor"
_RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"

_REQ = "sglang.srt.managers.schedule_batch.Req"
_ANTHROPIC = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"

SEAMS = (
    Seam(
        target=f"{_ANTHROPIC}._error_response",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows, inject, tilespec",
        handler="tessera_patches.invalid:of_anthropic",
        guard=Guard.PARAMETERS,
        why="A wrong value on /v1/messages is a 400 that names it, not a 500.",
        remove_when="SGLang tells a client's mistakes from its own on that route.",
        callers=(f"{_ANTHROPIC}._handle_non_streaming",),
    ),
    Seam(
        target=f"{_LOGPROBS}.get_token_ids_logprobs",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="",
        handler="tessera_patches.guard:with_tensors",
        guard=Guard.BODY,
        why="A request without token_ids_logprob beside one with it ends the scheduler (sglang #34719).",
        remove_when="SGLang's result handlers take lists beside tensors (sglang PR 35052).",
        callers=(f"{_LOGPROBS}.OutputLogprobProcessor.compute_logprobs", f"{_LOGPROBS}.compute_spec_v2_logprobs"),
        relied=(f"{_RESULTS}._normalize_decode_outputs", f"{_RESULTS}.move_logprobs_to_cpu"),
    ),
    Seam(
        target=f"{_REQ}._check_str_based_finish",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="",
        handler="tessera_patches.guard:in_time",
        guard=Guard.BODY,
        why="A stop_regex that backtracks without end stops the scheduler.",
        remove_when="SGLang bounds how long it matches stop_regex.",
        callers=(f"{_REQ}.update_finish_state",),
    ),
    Seam(
        target="sglang.srt.managers.utils.validate_input_length",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="",
        handler="tessera_patches.guard:check_length",
        guard=Guard.PARAMETERS,
        why="A text without tokens is a 400, for its prefill would end the scheduler; claims are never cut.",
        remove_when="SGLang refuses prompts without tokens, and takes ones that fill the context to generate nothing.",
        callers=("sglang.srt.managers.scheduler.Scheduler.handle_generate_request",),
    ),
)
