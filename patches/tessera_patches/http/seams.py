"""HTTP: what a request may say, our routes and errors, and logs, records and dumps of requests."""

from tessera_patches.core.places import CHAT, MANAGERS, REQUEST, TOKENIZER
from tessera_patches.core.seam import Guard, Hook, Phase, Runs, Seam

ANTHROPIC = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
SERVER = "sglang.srt.entrypoints.http_server"
PROTOCOL = "sglang.srt.entrypoints.openai.protocol"
EXPORTER = "sglang.srt.observability.request_metrics_exporter"
LOGGER = "sglang.srt.utils.request_logger.RequestLogger"


_RAISING = (
    f"{CHAT}._process_messages",
    f"{SERVER}.parse_function_call_request",
    f"{SERVER}.separate_reasoning_request",
)
"""What raises for a client's mistakes alone, beside `generate_request`; `tessera_patches.http.invalid` names them."""


def _seam(target: str, handler: str, why: str, *callers: str, writes: tuple[str, ...] = (), differs: str = "") -> Seam:
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
    )


SEAMS = (
    Seam(
        target=f"{ANTHROPIC}._error_response",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows, inject, tilespec",
        handler="tessera_patches.http.invalid:of_anthropic",
        guard=Guard.PARAMETERS,
        why="A wrong value on /v1/messages is a 400 that names it, not a 500.",
        remove_when="SGLang tells a client's mistakes from its own on that route.",
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
        callers=(f"{SERVER}.generate_request",),
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
        )
        for name in ("generate", "async_generate")
    ),
    Seam(
        target=f"{SERVER}.set_global_state",
        hook=Hook.BEFORE,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.http_server:prepare",
        guard=Guard.PARAMETERS,
        why="Adds our routes, and answers our errors as JSON with status and code.",
        remove_when="SGLang lets plugins register routes and error handlers.",
        callers=(f"{SERVER}._setup_and_run_http_server",),
        runs=Runs.HTTP,
    ),
    Seam(
        target=f"{TOKENIZER}.generate_request",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows, inject",
        handler="tessera_patches.http.openai:collected",
        guard=Guard.PARAMETERS,
        why="Notes embeddings and raw states by choice: OpenAI's answers are built from what it yields, and drop them.",
        remove_when="SGLang lets plugins add fields to the choices of OpenAI's answers.",
        callers=(f"{CHAT}._handle_non_streaming_request", f"{CHAT}._generate_chat_stream"),
        runs=Runs.REQUEST,
    ),
    Seam(
        target=f"{SERVER}.app",
        hook=Hook.OBJECT,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.http_server:extend",
        why="Our routes come before SGLang's, with our limits on bodies and our answers to errors.",
        remove_when="SGLang lets plugins register routes and error handlers.",
        relied=_RAISING,
    ),
    Seam(
        target=f"{SERVER}.app",
        hook=Hook.METHOD,
        phase=Phase.MAIN,
        feature="rows, inject",
        handler="tessera_patches.http.http_server:publish_schema",
        why="Its schema has our fields and routes.",
        remove_when="SGLang lets plugins register routes and error handlers.",
    ),
    Seam(
        target=f"{SERVER}.app",
        hook=Hook.METHOD,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.http_server:add_playground",
        why="With --tessera-ui, GET /tessera is a page, which a browser asks for without a key.",
        remove_when="SGLang lets plugins register routes that need no key.",
    ),
    Seam(
        target=f"{SERVER}.app",
        hook=Hook.METHOD,
        phase=Phase.MAIN,
        feature="",
        handler="tessera_patches.http.unserved:guard",
        why="Its routes that have no place for our fields refuse them.",
        remove_when="SGLang passes unknown request fields to plugins.",
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
            writes=tuple(f"{PROTOCOL}.{name}.{field}" for field in fields),
        )
        for name, fields in (
            ("ChatCompletionRequest", ("continue_final_message", "custom_params", "input_ids", "return_hidden_states")),
            ("CompletionRequest", ("custom_params", "prompt", "return_hidden_states")),
        )
    ),
    _seam(
        f"{EXPORTER}.RequestMetricsExporter._format_output_data",
        "exported",
        "A record is JSON: it has our fields, and not the vectors of injection.",
        f"{EXPORTER}.FileRequestMetricsExporter.write_record",
    ),
    _seam(
        f"{LOGGER}.log_received_request",
        "logged",
        "The log shows our fields, and no secret.",
        f"{TOKENIZER}.generate_request",
        writes=(f"{REQUEST}.text", f"{REQUEST}.sampling_params"),
    ),
    _seam(
        f"{LOGGER}.log_finished_request",
        "logged",
        "The log shows our fields, and no secret.",
        f"{TOKENIZER}._wait_one_response; <0.5.20",
        f"{TOKENIZER}._stream_one_response; >=0.5.20",
    ),
    _seam(
        f"{LOGGER}.log_openai_received_request",
        "logged_openai",
        "The log shows our fields, and no secret.",
        "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
    ),
    _seam(
        f"{TOKENIZER}.dump_requests",
        "dumped",
        "A dumped request can be sent again.",
        f"{TOKENIZER}._handle_batch_output",
        writes=(f"{MANAGERS}.tokenizer_manager.ReqState.obj",),
    ),
    _seam(
        f"{TOKENIZER}.record_request_for_crash_dump",
        "dumped",
        "A dumped request can be sent again.",
        f"{TOKENIZER}._handle_batch_output",
    ),
)
