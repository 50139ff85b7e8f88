"""The inventory: every seam, once. The lock file, the checks, ``tessera seams`` and docs/seams.md come from it."""

from __future__ import annotations

from tessera_patches.seam import Guard, Hook, Phase, Seam

_MANAGERS = "sglang.srt.managers"
_PROCESSOR = f"{_MANAGERS}.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
_STREAMER = f"{_MANAGERS}.scheduler_components.output_streamer.SchedulerOutputStreamer"
_TOKENIZER = f"{_MANAGERS}.tokenizer_manager.TokenizerManager"
_UPDATER = f"{_MANAGERS}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
_DRAFT_BACKENDS = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
_WORKER = f"{_MANAGERS}.tp_worker.TpModelWorker"
_LOGPROBS = f"{_MANAGERS}.scheduler_components.logprob_result_processor.SchedulerLogprobResultProcessor"
_BATCH = f"{_MANAGERS}.schedule_batch.ScheduleBatch"
_FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"


def _weight_update(method: str) -> Seam:
    return Seam(
        target=f"{_UPDATER}.{method}",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.weights:invalidate_rows",
        guard=Guard.PARAMETERS,
        why="Rows computed with the old weights are forgotten.",
        remove_when="SGLang announces weight updates to plugins.",
    )


def _draft_backend(method: str, handler: str) -> Seam:
    return Seam(
        target=f"{_DRAFT_BACKENDS}.{method}",
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
        target="sglang.srt.server_args.ServerArgs.add_cli_args",
        hook=Hook.AFTER,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.flags:add_options",
        guard=Guard.PARAMETERS,
        why="Adds our options to the launcher's.",
        remove_when="SGLang lets plugins add options.",
        callers=("sglang.srt.server_args.prepare_server_args",),
    ),
    Seam(
        target="sglang.srt.server_args.ServerArgs.from_cli_args",
        hook=Hook.AROUND,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.flags:read_options",
        guard=Guard.PARAMETERS,
        why="Reads our options, before SGLang checks its own.",
        remove_when="SGLang lets plugins add options.",
        callers=("sglang.srt.server_args.prepare_server_args",),
    ),
    Seam(
        target="sglang.srt.server_args.ServerArgs.__post_init__",
        hook=Hook.AFTER,
        phase=Phase.LOAD,
        feature="",
        handler="tessera_patches.server_args:decide",
        guard=Guard.PARAMETERS,
        why="Reads the options, refuses what is not supported, and installs what they ask for.",
        remove_when="SGLang calls plugins once the options are known.",
    ),
    Seam(
        target=f"{_MANAGERS}.io_struct.GenerateReqInput",
        hook=Hook.REPLACE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.request:GenerateReqInput",
        guard=Guard.BODY,
        why="Gives the request our fields, which FastAPI would drop; answers return_hidden_states ourselves.",
        remove_when="SGLang passes unknown request fields to plugins.",
    ),
    Seam(
        target="sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        hook=Hook.BEFORE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http_server:prepare",
        guard=Guard.PARAMETERS,
        why="Answers our errors as JSON with status and code; learns the model's hidden size.",
        remove_when="SGLang lets plugins register routes and error handlers.",
        callers=("sglang.srt.entrypoints.http_server.launch_server",),
    ),
    Seam(
        target=f"{_TOKENIZER}.generate_request",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows",
        handler="tessera_patches.openai:collected",
        guard=Guard.PARAMETERS,
        why="Notes embeddings and raw states by choice: OpenAI's answers are built from what it yields, and drop them.",
        remove_when="SGLang lets plugins add fields to the choices of OpenAI's answers.",
        callers=(f"{_CHAT}._handle_non_streaming_request", f"{_CHAT}._generate_chat_stream"),
    ),
    Seam(
        target=f"{_TOKENIZER}._wait_one_response",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows",
        handler="tessera_patches.responses:with_rows",
        guard=Guard.BODY,
        why="Puts embeddings and raw states, which come on a way of their own, into the answer that finishes.",
        remove_when="SGLang has a channel for per-request results of plugins (auxiliary_device_output in 0.5.23).",
        callers=(f"{_TOKENIZER}.generate_request", f"{_TOKENIZER}._handle_batch_request"),
    ),
    Seam(
        target="sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.memory:count_rows",
        guard=Guard.PARAMETERS,
        why="Reserves the row store's memory before the KV pool is sized: one row for each token.",
        remove_when="SGLang lets plugins reserve memory for each token.",
        callers=("sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator.__init__",),
    ),
    Seam(
        target=f"{_RUNNER}.alloc_memory_pool",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.memory:allocate_rows",
        guard=Guard.PARAMETERS,
        why="Allocates the row store beside the KV pool.",
        remove_when="SGLang lets plugins add buffers to the KV pool.",
        callers=(f"{_WORKER}.alloc_memory_pool",),
    ),
    Seam(
        target=f"{_RUNNER}.forward",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.forward:write_rows",
        guard=Guard.PARAMETERS,
        why="Stores the hidden states of every target forward at its KV slots, on the forward stream.",
        remove_when="SGLang keeps hidden states with the KV cache.",
        callers=(f"{_WORKER}.forward_batch_generation",),
    ),
    Seam(
        target=f"{_PROCESSOR}._maybe_collect_routed_experts",
        hook=Hook.BEFORE,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.results:note_finished",
        guard=Guard.PARAMETERS,
        why="The last moment at which a finished request still owns its KV slots.",
        remove_when="SGLang calls plugins when a request finishes.",
        callers=(f"{_PROCESSOR}.process_batch_result_prefill", f"{_PROCESSOR}._handle_finish_state_updated_req"),
    ),
    Seam(
        target=f"{_PROCESSOR}.process_batch_result_prefill",
        hook=Hook.BEFORE,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.results:watch_streams",
        guard=Guard.PARAMETERS,
        why="Learns which streams want a fingerprint with the chunk that completes it.",
        remove_when="SGLang calls plugins when a request starts to generate.",
        callers=("sglang.srt.managers.scheduler.Scheduler.process_batch_result",),
    ),
    Seam(
        target=f"{_STREAMER}.stream_output",
        hook=Hook.BEFORE,
        phase=Phase.SCHEDULER,
        feature="rows",
        handler="tessera_patches.results:read_rows",
        guard=Guard.PARAMETERS,
        why="Begins to read the rows of all that finished in the step, before their slots can be used again.",
        remove_when="SGLang calls plugins at the end of a step.",
        callers=(f"{_PROCESSOR}.process_batch_result_prefill", f"{_PROCESSOR}.process_batch_result_decode"),
    ),
    _weight_update("update_weights_from_disk"),
    _weight_update("update_weights_from_distributed"),
    _weight_update("update_weights_from_tensor"),
    _weight_update("update_weights_from_ipc"),
    Seam(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend",
        hook=Hook.REPLACE,
        phase=Phase.SCHEDULER,
        feature="cpu_speculation",
        handler="tessera_patches.cpu_speculation:TorchNativeAttnBackend",
        guard=Guard.BODY,
        why="Verifies drafted tokens on a machine without a GPU: chains, trees, and chains cut to length.",
        remove_when="SGLang's torch_native attention supports speculative decoding.",
    ),
    _draft_backend("create_decode_backend", "draft_decode_backend"),
    _draft_backend("create_draft_extend_backend", "draft_extend_backend"),
    Seam(
        target=f"{_TOKENIZER}._create_tokenized_object",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="inject",
        handler="tessera_patches.inject_request:resolve_positions",
        guard=Guard.PARAMETERS,
        why="The first moment at which a prompt's tokens are known: positions are checked, or found by a token.",
        remove_when="SGLang takes embeddings by position on /generate.",
        callers=(f"{_TOKENIZER}._tokenize_one_request", f"{_TOKENIZER}._batch_tokenize_and_process"),
    ),
    Seam(
        target=f"{_RUNNER}.load_model",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="inject",
        handler="tessera_patches.inject:check_model",
        guard=Guard.PARAMETERS,
        why="Refuses a model that would ignore injected embeddings.",
        remove_when="SGLang says which models take input_embeds.",
        callers=(f"{_RUNNER}.initialize",),
    ),
    Seam(
        target=f"{_MANAGERS}.schedule_batch.Req.__init__",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="inject",
        handler="tessera_patches.inject:attach",
        guard=Guard.PARAMETERS,
        why="Shows the prefix cache a hash of the vector where a vector goes, so that KV is shared up to there.",
        remove_when="SGLang keys its cache by embeddings as well (it caches such requests under their plain ids).",
    ),
    Seam(
        target=f"{_BATCH}.prepare_for_extend",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="inject",
        handler="tessera_patches.inject:prepare",
        guard=Guard.BODY,
        why="Gives the model the real ids, and sends the vectors of the chunk to the device.",
        remove_when="SGLang keys its cache by embeddings as well.",
    ),
    Seam(
        target=f"{_FORWARD_BATCH}.init_new",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="inject",
        handler="tessera_patches.inject:attach_plan",
        guard=Guard.PARAMETERS,
        why="Hands the vectors to the target's prefill alone; SGLang's own would stay in the batch while it decodes.",
        remove_when="SGLang clears replace_embeds after a prefill, and adds vectors as well as replacing.",
        callers=(f"{_WORKER}.forward_batch_generation",),
    ),
    Seam(
        target=f"{_RUNNER}._extend_forward_kwargs",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="inject",
        handler="tessera_patches.inject:place_vectors",
        guard=Guard.BODY,
        why="Puts the vectors in place, or adds them, between the embedding layer and the model.",
        remove_when="SGLang adds vectors as well as replacing.",
        callers=("sglang.srt.model_executor.runner.eager_runner.EagerRunner._execute_extend",),
    ),
    Seam(
        target=f"{_LOGPROBS}._process_input_token_logprobs",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="inject",
        handler="tessera_patches.inject:show_ids",
        guard=Guard.PARAMETERS,
        why="Tells the client the prompt's real ids beside their logprobs.",
        remove_when="SGLang keys its cache by embeddings as well.",
        callers=(f"{_LOGPROBS}.add_input_logprob_return_values",),
    ),
)


def seams(phase: Phase, features: list[str]) -> list[Seam]:
    """The seams to install in one phase for these features."""
    return [seam for seam in SEAMS if seam.phase is phase and seam.feature in ("", *features)]
