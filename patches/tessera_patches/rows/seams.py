"""Rows: where they are counted, written, read, sent, answered and forgotten."""

from tessera_patches.core.places import (
    BATCH,
    FORWARD_BATCH,
    LOGITS,
    LOGITS_OUTPUT,
    MANAGERS,
    PROCESSOR,
    REQ,
    RUNNER,
    SCHEDULER,
    STREAMER,
    TOKENIZER,
    UPDATER,
    WEIGHTS,
    WORKER,
)
from tessera_patches.core.seam import Guard, Hook, Phase, Runs, Seam

_SAMPLING = "sglang.srt.sampling.sampling_params.SamplingParams"
_EVENT_LOOPS = (f"{SCHEDULER}.event_loop_normal", f"{SCHEDULER}.event_loop_overlap")
_DISPATCHER = f"{SCHEDULER}.init_request_dispatcher"
"""Has a table of requests and the methods that handle them."""
_HANDLERS = (f"{PROCESSOR}.process_batch_result_prefill", f"{PROCESSOR}.process_batch_result_decode")
_CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_STAGES = tuple(
    f"{MANAGERS}.scheduler_pp_mixin.SchedulerPPMixin.{name}"
    for name in ("event_loop_pp", "_pp_launch_batch", "_pp_process_batch_result", "_pp_prepare_tensor_dict")
)
"""With ``--pp-size``: requests go to the next stage when this one has looked at them, and tokens come round."""
_HOST_POOL = "sglang.srt.mem_cache.pool_host.base.HostKVCache"
_TRANSFERS = "sglang.srt.mem_cache.l2_transfer.L2TransferEngine"
_CONTROLLER = f"{MANAGERS}.cache_controller.HiCacheController"
_SESSIONS = "sglang.srt.session.streaming_session.StreamingSession"
_FINISHERS = (f"{PROCESSOR}.process_batch_result_prefill", f"{PROCESSOR}._handle_finish_state_updated_req")


def _weight_update(
    function: str, caller: str = "", versions: str = "", moved: str = "", moved_why: str = "", differs: str = ""
) -> Seam:
    return Seam(
        target=f"{WEIGHTS}.{function}",
        hook=Hook.AFTER,
        feature="rows",
        handler="tessera_patches.rows.weights:forget_rows",
        guard=Guard.BODY,  # what its messages say about failures
        why="Rows computed with the old weights are forgotten, where any were loaded.",
        remove_when="SGLang announces weight updates to plugins.",
        called_by="An update of weights by this way.",
        callers=(
            f"{MANAGERS}.tp_worker.BaseTpWorker.{caller or function}; <0.5.20",
            f"{UPDATER}.{caller or function}; >=0.5.20",
        ),
        versions=versions,
        moved=moved,
        moved_why=moved_why,
        differs=differs,
    )


SEAMS = (
    Seam(
        target=f"{SCHEDULER}.get_init_info",
        hook=Hook.AROUND,
        feature="",
        handler="tessera_patches.rows.first_forward:announce",
        guard=Guard.PARAMETERS,
        why="The last moment before anything is served: one prompt shows what rows are, and that vectors are taken; "
        "the main process learns that this scheduler has our hooks.",
        remove_when="SGLang calls plugins when a scheduler is ready.",
        callers=(f"{MANAGERS}.scheduler.run_scheduler_process",),
        # Batches and forward are made as SGLang makes those of requests.
        relied=(
            f"{REQ}.init_next_round_input",
            f"{BATCH}.init_new",
            "sglang.srt.mem_cache.common.release_kv_cache",
            f"{MANAGERS}.scheduler_components.dp_attn.SchedulerDPAttnAdapter.maybe_prepare_mlp_sync_batch",
            "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.can_replay_locally",
        ),
        writes=(
            f"{REQ}.extend_end; >=0.5.20",
            f"{REQ}.logprob_start_len",
            f"{BATCH}.input_ids",
            f"{BATCH}.replace_embeds",
        ),
        differs="What a forward computes of a request is set as a range, or as its end; slots are released with other "
        "arguments.",
        runs=Runs.START,
    ),
    Seam(
        target=f"{LOGITS}.forward",
        hook=Hook.METHOD,
        feature="rows, inject",
        handler="tessera.rows.forward_notes:ForwardNotes",
        guard=Guard.PARAMETERS,
        why="Torch's own hooks note what the model's modules compute in the first forward; none is left afterwards.",
        remove_when="SGLang says of each model what its hidden states and its embedding layer are.",
        runs=Runs.START,
    ),
    Seam(
        target=f"{TOKENIZER}._validate_and_resolve_lora",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows",
        handler="tessera_patches.rows.answers:wait_for_room",
        guard=Guard.PARAMETERS,
        why="Refuses answers that are too large, and has raw rows wait for room: nothing of the request is queued yet.",
        remove_when="SGLang calls plugins before it tokenizes a request.",
        callers=(f"{TOKENIZER}.generate_request",),
        # An abort ends what waits here; the same tokens are counted as are run.
        relied=(f"{TOKENIZER}.generate_request", f"{TOKENIZER}._tokenize_texts"),
        differs="SGLang says whether a request was aborted, or the request's state does.",
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{TOKENIZER}._wait_one_response",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows, inject",
        handler="tessera_patches.rows.responses:with_fields",
        why="Puts what was read of the rows, which arrives by a channel of its own, into the answer that finishes.",
        remove_when="SGLang has a channel for per-request results of plugins (auxiliary_device_output in 0.5.23).",
        callers=(f"{TOKENIZER}.generate_request", f"{TOKENIZER}._handle_batch_request"),
        runs=Runs.REQUEST,
    ),
    Seam(
        target="sglang.srt.model_executor.pool_configurator.create_memory_pool_configurator",
        hook=Hook.AFTER,
        feature="rows",
        handler="tessera_patches.rows.memory:count_rows",
        guard=Guard.PARAMETERS,
        why="Reserves the row store's memory before the KV pool is sized: one row for each token.",
        remove_when="SGLang lets plugins reserve memory for each token.",
        callers=("sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator.config_from_budget",),
        writes=(
            "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._cell_size",
            "sglang.srt.model_executor.pool_configurator.HybridSWAPoolConfigurator._cell_size",
            "sglang.srt.model_executor.pool_configurator.HybridSWAPoolConfigurator._full_per_token",
            "sglang.srt.model_executor.pool_configurator.HybridSWAPoolConfigurator._fused_full_entry; >=0.5.23",
        ),
        differs="A draft model's KV may lie beside the target's; then a token's bytes have a field of their own.",
        runs=Runs.START,
    ),
    Seam(
        target=f"{RUNNER}.alloc_memory_pool",
        hook=Hook.AFTER,
        feature="rows",
        handler="tessera_patches.rows.memory:allocate_rows",
        guard=Guard.PARAMETERS,
        why="Allocates the row store beside the KV pool.",
        remove_when="SGLang lets plugins add buffers to the KV pool.",
        callers=(f"{WORKER}.alloc_memory_pool",),
        runs=Runs.START,
    ),
    Seam(
        target=f"{RUNNER}.forward",
        hook=Hook.AROUND,
        feature="rows",
        handler="tessera_patches.rows.forward:write_rows",
        guard=Guard.PARAMETERS,
        why="Stores the hidden states of every target forward at its KV slots, on the forward stream.",
        remove_when="SGLang keeps hidden states with the KV cache.",
        callers=(f"{WORKER}.forward_batch_generation",),
        writes=(f"{FORWARD_BATCH}.capture_hidden_mode", f"{LOGITS_OUTPUT}.hidden_states"),
        # Cuts what a graph's padding computed off the states.
        relied=(
            "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.execute",
            # Pads a batch to those of other ranks, behind its own tokens.
            f"{FORWARD_BATCH}.prepare_mlp_sync_batch",
            f"{FORWARD_BATCH}.post_forward_mlp_sync_batch",
        ),
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{LOGITS}.forward",
        hook=Hook.AROUND,
        feature="rows",
        handler="tessera_patches.rows.forward:without_logits",
        why="A batch of encodes only skips the logits: nothing is sampled from them.",
        remove_when="SGLang computes no logits for batches that are prefill-only.",
        runs=Runs.START,
    ),
    Seam(
        target=f"{SCHEDULER}._add_request_to_queue",
        hook=Hook.AROUND,
        feature="rows",
        handler="tessera_patches.rows.cached:answer_cached",
        why="Takes our keys out of custom_params; answers requests that only read cached rows without a forward.",
        remove_when="SGLang carries a plugin's parameters apart, and lets requests that sample nothing end at once.",
        callers=(f"{SCHEDULER}.handle_generate_request; <0.5.20", f"{SCHEDULER}._handle_generate_request; >=0.5.20"),
        relied=(
            "sglang.srt.mem_cache.radix_cache.RadixCache.match_prefix; <0.5.19",
            f"{_CACHE}.match_prefix; >=0.5.19",
            f"{_CACHE}._match_tree; >=0.5.19",
            f"{_CACHE}.path_device_indices; >=0.5.19",
            "sglang.srt.mem_cache.common._req_radix_key; >=0.5.19",
        ),
        differs="Another cache is the default; it gives the slots of a prefix by the path to it.",
        writes=(f"{REQ}.cached_tokens", f"{REQ}.extra_key", f"{REQ}.sampling_params", f"{_SAMPLING}.custom_params"),
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{PROCESSOR}._maybe_collect_routed_experts",
        hook=Hook.BEFORE,
        feature="rows",
        handler="tessera_patches.rows.results:note_finished",
        guard=Guard.PARAMETERS,
        why="The last moment at which a finished request still owns its KV slots.",
        remove_when="SGLang calls plugins when a request finishes.",
        callers=_FINISHERS,
        relied=(
            *_FINISHERS,
            "sglang.srt.mem_cache.common.release_kv_cache",  # this comes before that
            # What a session keeps of a turn, and gives the next one.
            f"{_SESSIONS}.try_cache_finished_req",
            f"{_SESSIONS}.try_match_prefix",
            "sglang.srt.session.session_controller.Session.create_req",
            "sglang.srt.session.session_controller.Session.finish_req",
        ),
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{PROCESSOR}.process_batch_result_prefill",
        hook=Hook.BEFORE,
        feature="rows",
        handler="tessera_patches.rows.results:note_prefilled",
        guard=Guard.PARAMETERS,
        why="Learns which requests have rows to read while they run.",
        remove_when="SGLang calls plugins when a request starts to generate.",
        callers=(f"{SCHEDULER}.process_batch_result",),
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{STREAMER}.stream_output",
        hook=Hook.BEFORE,
        feature="rows",
        handler="tessera_patches.rows.results:read_rows",
        guard=Guard.PARAMETERS,
        why="Begins to read the rows of all that finished in the step, before their slots can be used again.",
        remove_when="SGLang calls plugins at the end of a step.",
        callers=_HANDLERS,
        relied=_HANDLERS,
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{SCHEDULER}.process_batch_result",
        hook=Hook.BEFORE,
        feature="rows",
        handler="tessera_patches.rows.results:send_arrived",
        guard=Guard.PARAMETERS,
        why="Sends what was read at the end of the step before: it arrived while the next forward was launched.",
        remove_when="SGLang calls plugins when a forward is launched.",
        callers=_EVENT_LOOPS,
        # Between the release of slots and a read no forward is launched, and each waits for the scheduler's stream.
        relied=(
            *_EVENT_LOOPS,
            *_STAGES,
            f"{SCHEDULER}.run_batch",
            f"{SCHEDULER}._copy_result_to_cpu; >=0.5.23",
            f"{MANAGERS}.utils.GenerationBatchResult.copy_to_cpu",
        ),
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{SCHEDULER}.process_input_requests",
        hook=Hook.AFTER,
        feature="rows",
        handler="tessera_patches.rows.results:send_waiting",
        guard=Guard.PARAMETERS,
        why="Sends what was read when nothing runs any more, was cached whole, or while a server pauses.",
        remove_when="SGLang calls plugins when it is idle.",
        callers=(*(f"{loop}; <0.5.20" for loop in _EVENT_LOOPS), f"{SCHEDULER}.ingest_requests; >=0.5.20"),
        runs=Runs.REQUEST,
    ),
    *map(_weight_update, ("update_weights_from_disk", "update_weights_from_tensor", "update_weights_from_ipc")),
    _weight_update(
        "load_weights_from_distributed",
        "update_weights_from_distributed",
        moved=f"{WEIGHTS}.update_weights_from_distributed; <0.5.20",
        moved_why="Earlier one function receives weights and loads them.",
    ),
    *(
        _weight_update(
            f"{step}_weight_update",
            versions=">=0.5.20",
            differs="Weights may be written by other machines between the two.",
        )
        for step in ("begin", "end")
    ),
    Seam(
        target=f"{SCHEDULER}.flush_cache",
        hook=Hook.AFTER,
        feature="rows",
        handler="tessera_patches.rows.weights:note_flush",
        why="With the prefix cache empty, who reads rows shares prefixes with everybody again.",
        remove_when="SGLang divides its prefix cache by the weights.",
        called_by="/flush_cache, or an update of weights.",
        callers=(f"{UPDATER}.flush_cache_after_weight_update",),
    ),
    Seam(
        target=f"{UPDATER}.release_memory_occupation",
        hook=Hook.BEFORE,
        feature="rows",
        handler="tessera_patches.rows.weights:release",
        guard=Guard.PARAMETERS,
        why="The row store's memory is given back with the KV cache's: no read of it may be under way.",
        remove_when="SGLang lets plugins add buffers to the KV pool.",
        called_by="/release_memory_occupation.",
        callers=(_DISPATCHER,),
    ),
    Seam(
        target=f"{UPDATER}.resume_memory_occupation",
        hook=Hook.AFTER,
        feature="rows",
        handler="tessera_patches.rows.weights:resume",
        guard=Guard.PARAMETERS,
        why="The row store is there again, with anything in it: every row is forgotten.",
        remove_when="SGLang lets plugins add buffers to the KV pool.",
        called_by="/resume_memory_occupation.",
        callers=(_DISPATCHER,),
    ),
    Seam(
        target=f"{LOGITS}._get_hidden_states_to_store",
        hook=Hook.AROUND,
        feature="rows",
        handler="tessera_patches.rows.speculative:keep_rows",
        why="Keeps the last layer's normed states beside others that SGLang wants of a target instead.",
        remove_when="SGLang returns both.",
        callers=(f"{LOGITS}.forward",),
        runs=Runs.START,
    ),
    Seam(
        target="sglang.srt.speculative.spec_utils.move_accept_tokens_to_target_kvcache",
        hook=Hook.AFTER,
        feature="speculative_rows",
        handler="tessera_patches.rows.speculative:move_rows",
        why="Moves the rows of accepted drafts of a tree as their KV is moved.",
        remove_when="SGLang keeps hidden states with the KV cache.",
        runs=Runs.DECODE,
        runs_with="row_trees",
        callers=(
            "sglang.srt.speculative.eagle_worker_common._finalize_accept_tree_path",
            "sglang.srt.speculative.ngram_worker.NGRAMWorker.forward_batch_generation",
        ),
    ),
    Seam(
        target=f"{_HOST_POOL}.backup_from_device_all_layer_physical",
        hook=Hook.AFTER,
        feature="host_cache",
        handler="tessera_patches.rows.host:back_up",
        why="Copies rows to the host's memory when their KV is, before the event of that copy.",
        remove_when="SGLang keeps hidden states with the KV cache.",
        called_by="A prefix that SGLang copies to the host's memory.",
        callers=(f"{_TRANSFERS}.submit_device_to_host",),
        # On a stream that waits for the forwards that computed them, and for the reads of those before them.
        relied=(f"{_CONTROLLER}.start_writing", f"{_TRANSFERS}._submission", f"{_TRANSFERS}._prepare_transfers"),
    ),
    Seam(
        target=f"{_HOST_POOL}.load_to_device_per_layer_physical",
        hook=Hook.BEFORE,
        feature="host_cache",
        handler="tessera_patches.rows.host:load",
        why="Copies rows back before the first layer of their KV: a forward waits for each layer's event.",
        remove_when="SGLang keeps hidden states with the KV cache.",
        called_by="A prefix that comes back from there.",
        callers=(f"{_TRANSFERS}.submit_host_to_device",),
        relied=(
            f"{_TRANSFERS}.submit_host_to_device",
            f"{_CONTROLLER}.start_loading",
            f"{_CACHE}._load_back_transfers",  # its tokens are in the tree before they are copied
            f"{SCHEDULER}._get_new_batch_prefill_raw",
        ),
    ),
    Seam(
        target=f"{SCHEDULER}.attach_hicache_storage_wrapped",
        hook=Hook.AROUND,
        feature="host_cache",
        handler="tessera_patches.rows.host:refuse_storage",
        guard=Guard.PARAMETERS,
        why="Refuses storage behind the host's memory while a server runs, as at start: it has no rows.",
        remove_when="SGLang stores hidden states with the KV cache.",
        called_by="The route that attaches storage.",
        callers=(_DISPATCHER,),
    ),
)
