"""SGLang's routes that pass a client's values on unchecked: while a feature is on, these are checked first."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError
from sglang.srt.entrypoints.ollama.protocol import OllamaChatRequest, OllamaGenerateRequest
from sglang.srt.entrypoints.openai import protocol
from sglang.srt.managers.io_struct import VertexGenerateReqInput

from tessera import config
from tessera.errors import BadRequest, Described
from tessera.fields import known_keys
from tessera_patches.core import calls
from tessera_patches.engine.routes import generate_handler
from tessera_patches.http.request import GenerateReqInput
from tessera_patches.http.streams import with_first_chunk
from tessera_patches.http.unserved import OLLAMA_CHAT, OLLAMA_GENERATE, VERTEX

_PROMPTS = ("text", "input_ids", "input_embeds")
_READER = TypeAdapter(GenerateReqInput)
_FIELDS = [name for name in GenerateReqInput.__dataclass_fields__ if name not in (*_PROMPTS, "image_data")]
_MOST_ID = 2**32 - 1
"""Tokenizers take ids of 32 bits."""
_WRONG_ADVICE = b"--is-embedding"
"""SGLang's answer of a model that generates, on routes of models that do not; our options refuse that one."""


def add_routes(app: FastAPI, stock: Any) -> None:
    """Add checked versions of these routes to SGLang's application.

    Args:
        app: SGLang's.
        stock: SGLang's module ``http_server``.
    """
    serve = generate_handler()

    async def vertex_generate(body: Annotated[VertexGenerateReqInput, Body()], raw_request: Request) -> Any:
        return await with_first_chunk(await serve(_of_vertex(body), raw_request)) if body.instances else []

    calls.count(add_routes)
    app.add_api_route(VERTEX, vertex_generate, methods=["POST"], include_in_schema=False)
    _add_ollama(app, stock)
    _add_detokenize(app, stock)
    _add_scores(app, stock)


def _add_ollama(app: FastAPI, stock: Any) -> None:
    async def chat(request: OllamaChatRequest, raw_request: Request) -> Any:
        if not request.messages:
            raise BadRequest("messages", request.messages, "at least one message")
        return await with_first_chunk(await stock.ollama_chat(request, raw_request))

    async def generate(request: OllamaGenerateRequest, raw_request: Request) -> Any:
        return await with_first_chunk(await stock.ollama_generate(request, raw_request))

    calls.count(_add_ollama)
    app.add_api_route(OLLAMA_CHAT, chat, methods=["POST"], response_model=None, include_in_schema=False)
    app.add_api_route(OLLAMA_GENERATE, generate, methods=["POST"], response_model=None, include_in_schema=False)


def _add_detokenize(app: FastAPI, stock: Any) -> None:
    async def detokenize(request: protocol.DetokenizeRequest, raw_request: Request) -> Any:
        for i, ids in enumerate(request.tokens):
            for token in ids if isinstance(ids, list) else [ids]:
                if not 0 <= token <= _MOST_ID:
                    raise BadRequest(f"tokens[{i}]", ids, f"token ids, 0 to {_MOST_ID}")
        return await stock.openai_v1_detokenize(request, raw_request)

    _add(app, stock, "/v1/detokenize", detokenize)
    _add(app, stock, "/detokenize", detokenize)


def _add_scores(app: FastAPI, stock: Any) -> None:
    async def score(request: protocol.ScoringRequest, raw_request: Request) -> Any:
        if request.label_token_ids == []:
            raise BadRequest("label_token_ids", [], "at least one token id")
        return await stock.v1_score_request(request, raw_request)

    async def rerank(request: protocol.V1RerankReqInput, raw_request: Request) -> Any:
        return _advised("/v1/rerank", await stock.v1_rerank_request(request, raw_request))

    async def classify(request: protocol.ClassifyRequest, raw_request: Request) -> Any:
        return _advised("/v1/classify", await stock.openai_v1_classify(request, raw_request))

    async def classify_natively() -> None:
        raise _of_another_model("/classify")

    _add(app, stock, "/v1/score", score)
    _add(app, stock, "/v1/rerank", rerank, "PUT")
    _add(app, stock, "/v1/classify", classify)
    calls.count(_add_scores)
    app.add_api_route("/classify", classify_natively, methods=["POST", "PUT"], include_in_schema=False)


def _add(app: FastAPI, stock: Any, path: str, route: Callable[..., Any], *methods: str) -> None:
    json_only = [Depends(stock.validate_json_request)]
    calls.count(_add)
    app.add_api_route(path, route, methods=["POST", *methods], dependencies=json_only, include_in_schema=False)


def _of_vertex(body: VertexGenerateReqInput) -> GenerateReqInput:
    """The fields of the instances and the parameters, read as FastAPI reads the body of ``/generate``."""
    known_keys("parameters", body.parameters or {}, _FIELDS)
    name = next((name for name in _PROMPTS if body.instances[0].get(name)), _PROMPTS[0])
    images = [one["image_data"] for one in body.instances if one.get("image_data") is not None]
    prompts = {name: [one.get(name) for one in body.instances], "image_data": images or None}
    try:
        return _READER.validate_python({**(body.parameters or {}), **prompts})
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from error


def _advised(path: str, response: Any) -> Any:
    """The response, unless SGLang advises an option that the server cannot have.

    Rerankers that generate are served, so the route's other answers stay SGLang's.
    """
    if isinstance(response, Response) and _WRONG_ADVICE in response.body:
        raise _of_another_model(path)
    return response


def _of_another_model(path: str) -> BadRequest:
    served = "/v1/embeddings, /encode and return_embedding give its embeddings"
    return BadRequest(
        path,
        Described("a request to a model that generates"),
        f"a reranker or classifier{'; ' + served if config.active.rows else ''}",
    )
