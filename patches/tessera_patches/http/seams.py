"""HTTP: what a request may say, our routes and errors, and logs, records and dumps of requests."""

from tessera_patches.core.places import CHAT, HTTP_SERVER, MANAGERS, PROTOCOL, REQUEST, TOKENIZER
from tessera_patches.core.seam import Guard, Hook, Phase, Runs, Seam

ANTHROPIC = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
EXPORTER = "sglang.srt.observability.request_metrics_exporter"
LOGGER = "sglang.srt.utils.request_logger.RequestLogger"
SERVING = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase"


_RAISING = (
    f"{CHAT}._process_messages",
    f"{HTTP_SERVER}.parse_function_call_request",
    f"{HTTP_SERVER}.separate_reasoning_request",
)
"""What raises for a client's mistakes alone, beside `generate_request`; `tessera_patches.http.invalid` names them."""


_EMBEDDINGS = ("openai_v1_embeddings", "encode_request")
_GUARDED = "rows, inject, tilespec"


def _on_app(
    handler: str,
    feature: str,
    why: str,
    *routes: str,
    relied: tuple[str, ...] = (),
    remove_when: str = "",
    called_by: str = "",
) -> Seam:
    """What a function adds to SGLang's application.

    Args:
        handler: the function.
        feature: the feature that needs it.
        why: what it adds.
        routes: SGLang's functions that it calls or stands in for; a body has the decorators, with paths and methods.
        relied: dotted paths of what else it relies on.
        remove_when: what would make it unnecessary.
        called_by: which servers have it, where that is not all of the feature.
    """
    return Seam(
        target=f"{HTTP_SERVER}.app",
        hook=Hook.OBJECT,
        phase=Phase.MAIN,
        feature=feature,
        handler=f"tessera_patches.http.{handler}",
        why=why,
        remove_when=remove_when or "SGLang lets plugins register routes and error handlers.",
        relied=(*(f"{HTTP_SERVER}.{route}" for route in routes), *relied),
        runs=Runs.ON_DEMAND if called_by else Runs.HTTP,
        called_by=called_by,
    )


def _seam(
    target: str,
    handler: str,
    why: str,
    *callers: str,
    writes: tuple[str, ...] = (),
    differs: str = "",
    runs: Runs = Runs.ON_DEMAND,
    runs_with: str = "",
    called_by: str = "",
) -> Seam:
    return Seam(
        target=target,
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows, inject",
        handler=f"tessera_patches.http.records:{handler}",
        guard=Guard.PARAMETERS,
        why=why,
        remove_when="SGLang passes unknown request fields to plugins.",
        callers=callers,
        writes=writes,
        differs=differs,
        runs=runs,
        runs_with=runs_with,
        called_by=called_by,
    )


SEAMS = (
    Seam(
        target=f"{ANTHROPIC}._error_response",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature=_GUARDED,
        handler="tessera_patches.http.invalid:of_anthropic",
        guard=Guard.PARAMETERS,
        why="A wrong value on /v1/messages is a 400 that names it, not a 500.",
        remove_when="SGLang tells a client's mistakes from its own on that route.",
        called_by="A wrong value on /v1/messages.",
        callers=(f"{ANTHROPIC}._handle_non_streaming",),
        relied=_RAISING[:1],
    ),
    Seam(
        target=REQUEST,
        hook=Hook.REPLACE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.request:GenerateReqInput",
        why="Gives the request our fields, which FastAPI would drop; answers return_hidden_states ourselves.",
        remove_when="SGLang passes unknown request fields to plugins.",
        called_by="OpenAI's routes and `Engine.generate`: /generate is our route.",
        writes=tuple(
            f"{REQUEST}.{name}"
            for name in ("extra_key", "input_embeds", "input_ids", "return_hidden_states", "return_prompt_token_ids")
        ),
        callers=("sglang.srt.entrypoints.engine.Engine.generate", f"{CHAT}._convert_to_internal_request"),
    ),
    Seam(
        target="sglang.srt.entrypoints.api_contract.generate_contract_error",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows",
        handler="tessera_patches.http.request:check_stock_fields",
        why="SGLang's schema of bodies has return_hidden_states as a boolean only; ours was checked before.",
        remove_when="SGLang lets plugins add fields to its schema.",
        called_by="/generate.",
        callers=(f"{HTTP_SERVER}.generate_request",),
        versions=">=0.5.22",
        differs="Earlier bodies have no schema.",
    ),
    Seam(
        target="sglang.srt.entrypoints.engine.Engine._set_startup_time",
        hook=Hook.BEFORE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.http_server:set_sizes",
        guard=Guard.PARAMETERS,
        why="Checks the schedulers, and takes the model's sizes from them, with and without HTTP.",
        remove_when="SGLang calls plugins when its schedulers are ready.",
        callers=("sglang.srt.entrypoints.engine.Engine._launch_subprocesses",),
        runs=Runs.START,
    ),
    *(
        Seam(
            target=f"sglang.srt.entrypoints.engine.Engine.{name}",
            hook=Hook.AROUND,
            phase=Phase.MAIN,
            feature="",
            handler=f"tessera_patches.http.offline:{name}",
            guard=Guard.PARAMETERS,
            why="Takes our fields as keywords.",
            remove_when="SGLang passes unknown request fields to plugins.",
            called_by=f"`Engine.{name}`.",
        )
        for name in ("generate", "async_generate")
    ),
    Seam(
        target=f"{HTTP_SERVER}.set_global_state",
        hook=Hook.BEFORE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.http_server:prepare",
        guard=Guard.PARAMETERS,
        why="Adds our routes, and answers our errors as JSON with status and code.",
        remove_when="SGLang lets plugins register routes and error handlers.",
        callers=(f"{HTTP_SERVER}._setup_and_run_http_server",),
        runs=Runs.HTTP,
    ),
    Seam(
        target=f"{TOKENIZER}.generate_request",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows, inject",
        handler="tessera_patches.http.openai:collect_outputs",
        guard=Guard.PARAMETERS,
        why="Notes embeddings and raw states by choice: OpenAI's answers are built from what it yields, and drop them.",
        remove_when="SGLang lets plugins add fields to the choices of OpenAI's answers.",
        callers=(f"{CHAT}._handle_non_streaming_request", f"{CHAT}._generate_chat_stream"),
        runs=Runs.REQUEST,
    ),
    _on_app("http_server:extend", "", "Puts our routes before SGLang's, and answers our errors."),
    _on_app(
        "http_server:add_limits",
        "rows, inject",
        "Adds middleware: limits on bodies and answers, and no field twice in a body.",
        remove_when="SGLang lets plugins register middleware.",
    ),
    _on_app(
        "http_server:add_generate",
        "",
        "Stands in for /generate, with our request, and calls SGLang's route.",
        "generate_request",
        "serve_generate_request; >=0.5.22",
        remove_when="SGLang passes unknown request fields to plugins.",
    ),
    _on_app(
        "http_server:add_refusals",
        "",
        "Without rows: refuses /v1/embeddings, /encode and our own routes, naming the flag. SGLang's two routes are "
        "not called; their bodies are locked, so that we see it if they come to serve models that generate.",
        *_EMBEDDINGS,
        called_by="A server without rows.",
    ),
    _on_app(
        "info:add_route",
        "",
        "Stands in for /server_info and /get_server_info: SGLang's answer to the first, without secrets and with ours. "
        "SGLang's second route is not called; its body is locked, for its answer must be that of the first.",
        "server_info",
        "get_server_info",
        remove_when="SGLang leaves out secrets, and lets plugins add to this answer.",
    ),
    _on_app(
        "invalid:install",
        _GUARDED,
        "Replaces the handler of RequestValidationError, calls SGLang's and gives its answer another message. Adds "
        "handlers of what SGLang raises for a client's mistakes.",
        "validation_exception_handler",
        relied=_RAISING,
        remove_when="SGLang answers a client's mistakes with a 400 that names the field.",
    ),
    _on_app(
        "stock_routes:add_routes",
        _GUARDED,
        "Stands in for the Vertex route: checks parameters, and calls what answers /generate. SGLang's route is not "
        "called; its body is locked, for ours reads the same instances.",
        "vertex_generate",
        "generate_request; <0.5.22",
        "serve_generate_request; >=0.5.22",
        remove_when="SGLang checks the parameters of that route.",
    ),
    _on_app(
        "stock_routes:_add_ollama",
        _GUARDED,
        "Stands in for Ollama's two routes: checks requests, and calls SGLang's.",
        "ollama_chat",
        "ollama_generate",
        remove_when="SGLang answers mistakes on these routes with a 400.",
    ),
    _on_app(
        "stock_routes:_add_scores",
        _GUARDED,
        "Refuses /classify. SGLang's route is not called; its body is locked, so that we see it if it comes to serve "
        "models that generate.",
        "classify_request",
        remove_when="SGLang refuses that route for models that generate.",
    ),
    _on_app(
        "stock_routes:_add",
        _GUARDED,
        "Stands in for the routes of detokenization, scores, ranks and classes: checks requests, and calls SGLang's.",
        "openai_v1_detokenize",
        "v1_score_request",
        "v1_rerank_request",
        "openai_v1_classify",
        "validate_json_request",
        remove_when="SGLang answers mistakes on these routes with a 400.",
    ),
    _on_app(
        "weight_routes:add_routes",
        _GUARDED,
        "Stands in for five routes that change weights: refuses what would end the scheduler, and calls SGLang's.",
        "update_weights_from_disk",
        "update_weights_from_tensor",
        "update_weights_from_distributed",
        "init_weights_update_group",
        "destroy_weights_update_group",
        relied=("sglang.srt.utils.auth.auth_level",),
        remove_when="SGLang checks these requests before its schedulers get them.",
    ),
    _on_app(
        "openai:add_routes",
        "",
        "Stands in for chats, /invocations and text completions, with our requests. SGLang's routes are not called, "
        "but what they call is; their bodies are locked, for ours do the same.",
        "openai_v1_chat_completions",
        "openai_v1_completions",
        "sagemaker_chat_completions",
        "validate_json_request",
        relied=(f"{SERVING}.handle_request",),
        remove_when="SGLang passes unknown request fields to plugins.",
    ),
    _on_app(
        "embeddings:add_routes",
        "rows",
        "Stands in for /v1/embeddings and /encode. SGLang's routes are not called; their bodies are locked, so that we "
        "see it if they come to serve models that generate.",
        *_EMBEDDINGS,
        remove_when="SGLang gives embeddings of models that generate.",
    ),
    Seam(
        target=f"{HTTP_SERVER}.app",
        hook=Hook.METHOD,
        phase=Phase.MAIN,
        feature="rows, inject",
        handler="tessera_patches.http.http_server:publish_schema",
        why="Its schema has our fields and routes.",
        remove_when="SGLang lets plugins register routes and error handlers.",
        called_by="/openapi.json.",
    ),
    Seam(
        target=f"{HTTP_SERVER}.app",
        hook=Hook.METHOD,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.http_server:add_playground",
        why="With --tessera-ui, GET /tessera is a page, which a browser asks for without a key.",
        remove_when="SGLang lets plugins register routes that need no key.",
        runs=Runs.HTTP,
        runs_with="playground",
    ),
    Seam(
        target=f"{HTTP_SERVER}.app",
        hook=Hook.METHOD,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.unserved:guard",
        why="Its routes that have no place for our fields refuse them.",
        remove_when="SGLang passes unknown request fields to plugins.",
        called_by="Routes that have no place for our fields.",
    ),
    *(
        Seam(
            target=f"{PROTOCOL}.{name}",
            hook=Hook.SUBCLASS,
            phase=Phase.MAIN,
            feature="",
            handler=f"tessera_patches.http.openai:{name}",
            why="Has our fields, which pydantic would drop.",
            remove_when="SGLang passes unknown request fields to plugins.",
            called_by=f"OpenAI's {what}.",
            writes=tuple(f"{PROTOCOL}.{name}.{field}" for field in fields),
        )
        for name, what, fields in (
            (
                "ChatCompletionRequest",
                "chats",
                ("custom_params", "input_ids", "return_hidden_states"),
            ),
            ("CompletionRequest", "text completions", ("custom_params", "prompt", "return_hidden_states")),
        )
    ),
    _seam(
        f"{EXPORTER}.RequestMetricsExporter._format_output_data",
        "export_request",
        "A record is JSON: it has our fields, and not the vectors of injection.",
        f"{EXPORTER}.FileRequestMetricsExporter.write_record",
        called_by="A request, with `--export-metrics-to-file`.",
    ),
    _seam(
        f"{LOGGER}.log_received_request",
        "log_request",
        "The log shows our fields, and no secret.",
        f"{TOKENIZER}.generate_request",
        writes=(f"{REQUEST}.text", f"{REQUEST}.sampling_params"),
        runs=Runs.REQUEST,
    ),
    _seam(
        f"{LOGGER}.log_finished_request",
        "log_request",
        "The log shows our fields, and no secret.",
        f"{TOKENIZER}._wait_one_response; <0.5.20",
        f"{TOKENIZER}._stream_one_response; >=0.5.20",
        runs=Runs.WARM_UP,
    ),
    _seam(
        f"{LOGGER}.log_openai_received_request",
        "log_openai_request",
        "The log shows our fields, and no secret.",
        f"{SERVING}.handle_request",
        called_by="A request to OpenAI's routes, with `--log-requests-level` 2 or more.",
    ),
    _seam(
        f"{TOKENIZER}.dump_requests",
        "dump_request",
        "A dumped request can be sent again.",
        f"{TOKENIZER}._handle_batch_output",
        writes=(f"{MANAGERS}.tokenizer_manager.ReqState.obj",),
        called_by="A request, once /configure_logging has named a folder.",
    ),
    _seam(
        f"{TOKENIZER}.record_request_for_crash_dump",
        "dump_request",
        "A dumped request can be sent again.",
        f"{TOKENIZER}._handle_batch_output",
        runs=Runs.WARM_UP,
        runs_with="crash_dumps",
    ),
)
