"""Routes of SGLang's that hand a client's values on unchecked: checked first, while a feature of ours is on."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from sglang.srt.entrypoints.openai import protocol
from sglang.srt.managers.io_struct import VertexGenerateReqInput

from tessera.errors import BadRequest
from tessera.fields import known_keys
from tessera_patches.request import GenerateReqInput

_PROMPTS = ("text", "input_ids", "input_embeds")
_READER = TypeAdapter(GenerateReqInput)
_FIELDS = [name for name in GenerateReqInput.__dataclass_fields__ if name not in (*_PROMPTS, "image_data")]
_MOST_ID = 2**32 - 1
"""Tokenizers take ids of 32 bits."""


def add_routes(app: FastAPI, stock: Any, vertex_path: str) -> None:
    """Add them.

    Args:
        app: SGLang's.
        stock: SGLang's module ``http_server``.
        vertex_path: where Vertex AI sends its requests.
    """

    async def vertex_generate(body: Annotated[VertexGenerateReqInput, Body()], raw_request: Request) -> Any:
        return await stock.generate_request(_of_vertex(body), raw_request) if body.instances else []

    async def detokenize(request: protocol.DetokenizeRequest, raw_request: Request) -> Any:
        for i, ids in enumerate(request.tokens):
            for token in ids if isinstance(ids, list) else [ids]:
                if not 0 <= token <= _MOST_ID:
                    raise BadRequest(f"tokens[{i}]", ids, f"token ids, 0 to {_MOST_ID}")
        return await stock.openai_v1_detokenize(request, raw_request)

    async def classify() -> None:
        raise BadRequest(
            "/classify", "a model that generates", "return_embedding on /generate, /v1/embeddings, /encode"
        )

    json_only = [Depends(stock.validate_json_request)]
    app.add_api_route(vertex_path, vertex_generate, methods=["POST"], include_in_schema=False)
    app.add_api_route("/classify", classify, methods=["POST", "PUT"], include_in_schema=False)
    for path in ("/v1/detokenize", "/detokenize"):
        app.add_api_route(path, detokenize, methods=["POST"], dependencies=json_only, include_in_schema=False)


def _of_vertex(body: VertexGenerateReqInput) -> GenerateReqInput:
    """What the instances and the parameters ask for, read as FastAPI reads the body of ``/generate``."""
    known_keys("parameters", body.parameters or {}, _FIELDS)
    name = next((name for name in _PROMPTS if body.instances[0].get(name)), _PROMPTS[0])
    images = [one["image_data"] for one in body.instances if one.get("image_data") is not None]
    prompts = {name: [one.get(name) for one in body.instances], "image_data": images or None}
    try:
        return _READER.validate_python({**(body.parameters or {}), **prompts})
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from error
