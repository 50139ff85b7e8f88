"""Requests that would end the scheduler: installed with any feature."""

from tessera_patches.core.places import MANAGERS, PROCESSOR, REQ, SCHEDULER, SPECULATIVE
from tessera_patches.core.seam import Guard, Hook, Runs, Seam

_LOGPROBS = "sglang.srt.layers.logprob_processor"

SEAMS = (
    Seam(
        target=f"{_LOGPROBS}.get_token_ids_logprobs",
        hook=Hook.AROUND,
        feature="",
        handler="tessera_patches.guard.scheduler:with_empty_tensors",
        why="A request without token_ids_logprob beside one with it ends the scheduler (sglang #34719).",
        remove_when="SGLang's result handlers take lists beside tensors (sglang PR 35052).",
        called_by="`token_ids_logprob` of some requests.",
        callers=(f"{_LOGPROBS}.OutputLogprobProcessor.compute_logprobs", f"{_LOGPROBS}.compute_spec_v2_logprobs"),
        relied=(f"{PROCESSOR}._normalize_decode_outputs", f"{PROCESSOR}.move_logprobs_to_cpu"),
        versions="<0.5.22",
        differs="Later the function makes the empty tensors itself.",
    ),
    Seam(
        target=f"{REQ}._check_str_based_finish",
        hook=Hook.CLASS,
        feature="",
        handler="tessera_patches.guard.scheduler:check_request",
        why="A stop_regex that backtracks without end stops the scheduler.",
        remove_when="SGLang bounds how long it matches stop_regex.",
        called_by="A request with `stop_regex`.",
        callers=(f"{REQ}.update_finish_state",),
        writes=(f"{REQ}.finished_reason",),
    ),
    Seam(
        target=f"{REQ}._check_str_based_finish",
        hook=Hook.OBJECT,
        feature="",
        handler="tessera_patches.guard.scheduler:ReqWithPatterns",
        why="While a request's stop_regex is matched, the process's handler of SIGALRM and its timer are ours.",
        remove_when="SGLang bounds how long it matches stop_regex.",
        called_by="A request with `stop_regex`.",
    ),
    Seam(
        target=f"{MANAGERS}.utils.validate_input_length",
        hook=Hook.AROUND,
        feature="",
        handler="tessera_patches.guard.scheduler:check_request",
        guard=Guard.PARAMETERS,
        why="A text without tokens is a 400, for its prefill would end the scheduler; claims are never cut.",
        remove_when="SGLang refuses prompts without tokens, and takes ones that fill the context to generate nothing.",
        callers=(f"{SCHEDULER}.handle_generate_request; <0.5.20", f"{SCHEDULER}._handle_generate_request; >=0.5.20"),
        runs=Runs.REQUEST,
    ),
    Seam(
        target="sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
        hook=Hook.AFTER,
        feature="rows, inject, tilespec, cpu_speculation",
        handler="tessera_patches.guard.row_width:with_draft_reserve",
        why="Makes each request's row of slots as wide as what is reserved for drafts, or it runs into the next row.",
        remove_when="SGLang does so for pages of one token, too.",
        callers=("sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_req_to_token_pool",),
        relied=(
            "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode",
            f"{SPECULATIVE}.eagle_utils.eagle_prepare_for_decode",
        ),
        runs=Runs.START,
    ),
    Seam(
        target=f"{REQ}.update_finish_state",
        hook=Hook.AROUND,
        feature="speculative_stops",
        handler="tessera_patches.guard.stops:finish_token_by_token",
        why="Ends an answer at the first stop among accepted drafts, or at its limit, as plain decoding does.",
        remove_when="SGLang looks for what ends a request token by token (issue 31599).",
        callers=(f"{PROCESSOR}.process_batch_result_decode",),
        relied=(f"{REQ}.output_ids_through_stop",),
        writes=(f"{REQ}.finished_reason", f"{REQ}.finished_len", f"{REQ}.grammar", f"{REQ}.output_ids"),
        runs=Runs.REQUEST,
    ),
)
