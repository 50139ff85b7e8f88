"""The HTTP application: our routes, our errors as JSON, and a line that says what is on."""

import logging
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from sglang.srt.utils.json_response import orjson_response

from tessera import __version__, answer_bytes, config
from tessera.capabilities.fingerprints.room import VerifyRoom
from tessera.capabilities.registry import CAPABILITIES
from tessera.capability import NEEDS_ROWS_OR_FINGERPRINTS
from tessera.errors import (
    BadRequest,
    Described,
    StartRefused,
    TesseraError,
)
from tessera.http import schema
from tessera.http.answer_room import AnswerRoom
from tessera.http.asgi import Receive, Scope
from tessera.http.body_limit import BodyLimit
from tessera.http.error_body import error_body, note
from tessera.http.playground import Playground
from tessera.http.repeated_keys import UniqueFields
from tessera.http.schema import document, merge
from tessera.limits import MAX_BODY_BYTES
from tessera.metrics import Metrics
from tessera.refusal import schedules_apart
from tessera_patches.core import calls
from tessera_patches.core.changes import move_to_front, replace_method
from tessera_patches.engine.model import context_length, generates, hidden_size, vocabulary
from tessera_patches.engine.options import options, page_size
from tessera_patches.fingerprints import verify as toploc
from tessera_patches.http import embeddings, info, invalid, openai, stock_routes, unserved, weight_routes
from tessera_patches.http.request import GenerateReqInput
from tessera_patches.http.streams import with_first_chunk
from tessera_patches.inject import request as inject_request
from tessera_patches.launch import liveness
from tessera_patches.rows import answers

GENERATING = ("/generate", "/v1/chat/completions", "/v1/completions", "/invocations", unserved.VERTEX)
"""SGLang's routes that take our fields."""

OURS = tuple(path for capability in CAPABILITIES for path in capability.paths())
"""Routes that we answer ourselves."""

logger = logging.getLogger(__name__)


def set_sizes(manager: Any, started: Any, *_: Any) -> None:
    """BEFORE ``Engine._set_startup_time``: every scheduler is ready, and whoever launched them has nothing yet."""
    args = options(manager)
    with liveness.end_on_error():
        infos = started.scheduler_infos
        reported = [one.pop(config.ON, []) for one in infos]
        config.conditions += tuple(name for name in config.CONDITIONS if any(name in one for one in reported))
        liveness.check_ready()
        if not schedules_apart(args):  # of several, SGLang's controller passes on what it knows alone
            _check_schedulers(reported)
        if args.tokenizer_worker_num > 1:  # not a TokenizerManager: others serve, without our hooks
            return
        config.active.hidden_size = hidden_size(manager)
        config.active.vocabulary = vocabulary(manager)
        config.active.context = context_length(manager)
        if args.enable_metrics:
            config.metrics = _metrics(args.served_model_name)
        if config.inbox is not None:
            config.inbox.hide()  # every scheduler is connected
            config.inbox.on_stats = info.note
        config.room = VerifyRoom.of(infos[0], page_size(manager))
        config.injection = inject_request.model(manager)
        answer_bytes.budget = answers.budget(manager) if config.active.rows else None
        if answer_bytes.budget is not None and config.metrics is not None:
            answer_bytes.budget.room.on_change = config.metrics.set_held


def _metrics(model: str) -> Metrics:
    return Metrics(
        model,
        info.labels(),
        counters=[counter for capability in CAPABILITIES for counter in capability.counters],
        work=[name for capability in CAPABILITIES for name in capability.work],
        routes=OURS,
    )


def _check_schedulers(reported: list[list[str]]) -> None:
    """Whoever starts schedulers without SGLang's own function, in Ray actors for example, may load no plugin there."""
    wanted = config.active.features()
    if any(set(wanted) - set(on) for on in reported):
        raise StartRefused(
            f"{', '.join(wanted)}: a scheduler runs without our hooks; load_plugins() was not called there"
        )


def prepare(state: Any) -> None:
    """BEFORE ``http_server.set_global_state``, which comes before SGLang's application serves, whoever runs it."""
    from sglang.srt.entrypoints import http_server

    manager = state.tokenizer_manager
    if options(manager).tokenizer_worker_num > 1:
        return
    with liveness.end_on_error():
        extend(http_server, manager)
        if config.active.rows or config.active.inject:
            publish_schema(http_server.app, adapters=bool(options(manager).enable_lora))
        if config.flags.tessera_ui:
            add_playground(http_server.app)
    features = ", ".join(config.on()) or "nothing"
    logger.info("tessera %s is on: %s; tessera doctor --url lists its hooks", __version__, features)


def extend(http_server: Any, manager: Any) -> None:
    """Add limits, errors and routes to the app of SGLang's module ``http_server``."""
    app = http_server.app
    if config.active.rows or config.active.inject:
        add_limits(app)
    app.add_exception_handler(TesseraError, answer_error)
    stock = len(app.router.routes)
    add_generate(app, http_server.generate_request)
    info.add_route(app, http_server.server_info)
    if config.active.guarded:
        invalid.install(app, answer_error)
        stock_routes.add_routes(app, http_server)
        weight_routes.add_routes(app, http_server, options(manager))
    unserved.guard(app)
    openai.add_routes(app, http_server.validate_json_request)
    if config.active.rows:
        embeddings.add_routes(app, manager)
        toploc.add_routes(app, manager)
    elif generates(manager):
        add_refusals(app)
    # Ours first: SGLang's own of the same path stay behind them.
    move_to_front(extend, app.router.routes, stock)


def add_limits(app: FastAPI) -> None:
    """What comes in is bounded first, then what goes out."""
    calls.count(add_limits)
    if answer_bytes.budget is not None:
        app.add_middleware(AnswerRoom, room=answer_bytes.budget.room, left=_left)
    names = schema.property_names()
    app.add_middleware(UniqueFields, paths=(*GENERATING, *unserved.TEXT, *unserved.SCORES), names=names)
    app.add_middleware(BodyLimit, most=body_sizes(), seconds=config.flags.body_max_seconds)


def body_sizes() -> dict[str, tuple[int, str]]:
    """The most bytes of a request's body by route, and the option that raises it."""
    ours = dict.fromkeys(OURS, (MAX_BODY_BYTES, "")) if config.active.rows else {}
    if config.active.inject and config.injection is not None:
        ours |= dict.fromkeys(GENERATING, (config.injection.max_bytes, "--injection-max-megabytes"))
    return ours


def _left(scope: Scope, receive: Receive) -> Callable[[], Awaitable[bool]]:
    return Request(scope, receive).is_disconnected


def add_generate(app: FastAPI, stock: Callable[..., Awaitable[Any]]) -> None:
    """``/generate`` with our request: the route of an application that is older than our hooks reads SGLang's."""

    async def generate(obj: GenerateReqInput, request: Request) -> Any:
        answer = await stock(obj, request)
        return await with_first_chunk(answer) if config.active.guarded else answer

    calls.count(add_generate)
    app.add_api_route("/generate", generate, methods=["POST", "PUT"], include_in_schema=False)


def add_refusals(app: FastAPI) -> None:
    """On a server without rows our routes name the flag; SGLang's own name one for models of another kind."""

    async def refuse(request: Request) -> Response:
        raise BadRequest(request.url.path, Described("a request"), NEEDS_ROWS_OR_FINGERPRINTS)

    calls.count(add_refusals)
    for path in OURS:
        app.add_api_route(path, refuse, methods=["POST", "PUT"], include_in_schema=False)


def add_playground(app: FastAPI) -> None:
    """The page comes before all middleware, SGLang's check of the key included, which it adds after this."""
    stock = app.build_middleware_stack
    replace_method(add_playground, app, "build_middleware_stack", lambda: Playground(stock()))


def publish_schema(app: FastAPI, *, adapters: bool) -> None:
    """``/openapi.json``: SGLang's, with our routes and fields in it."""
    stock = app.openapi

    @cache
    def openapi() -> dict[str, Any]:
        ours = document(config.active.hidden_size, config.active.vocabulary or None, adapters=adapters)
        return merge(deepcopy(stock()), ours, generating=GENERATING, routes=config.active.rows)

    replace_method(publish_schema, app, "openapi", openapi)  # FastAPI's documented way


async def answer_error(request: Request, error: Exception) -> Response:
    """The answer to one of our errors, with its status."""
    known = error if isinstance(error, TesseraError) else TesseraError(str(error))
    note(known, f"{request.method} {request.url.path}")
    response: Response = orjson_response(error_body(error), status_code=known.status)
    return response
