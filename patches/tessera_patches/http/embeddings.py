"""``/v1/embeddings`` and ``/encode``: prompts are requests of the engine that generate nothing."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from sglang.srt.managers import io_struct
from sglang.srt.utils.json_response import orjson_response

from tessera import config
from tessera.capabilities.embed import routes as embeddings
from tessera.capabilities.embed.inputs import Prompts
from tessera.capabilities.embed.routes import Embed, Model
from tessera.errors import EngineRefused, RequestFailed, StartRefused
from tessera.http.vectors import Body
from tessera.rows.reads import ROWS_UNAVAILABLE
from tessera.telemetry import timed
from tessera_patches.core import calls
from tessera_patches.engine.model import hidden_size, vocabulary
from tessera_patches.engine.options import options
from tessera_patches.engine.tokenizer import longest_prompt, tokenizer_of
from tessera_patches.fingerprints.whole_claims import PromptRefused


def add_routes(app: FastAPI, manager: Any) -> None:
    """``/v1/embeddings`` and ``/encode``; SGLang's own can be answered by servers of embedding models only."""
    flags, hidden = config.flags, hidden_size(manager)
    if (flags.embeddings_dimensions or 0) > hidden:
        raise StartRefused(f"--embeddings-dimensions {flags.embeddings_dimensions} is above {hidden}, this model's")
    names = (options(manager).served_model_name, hidden, vocabulary(manager))
    rest = (manager.lora_ref_cache, longest_prompt(manager) - 1, tokenizer_of(manager))
    model = Model(*names, flags.embed_options, flags.embeddings_text_only, *rest)

    async def v1_embeddings(request: Request) -> Response:
        with timed("/v1/embeddings"):
            return _respond(await embeddings.openai(request, _embed(manager, request, "input"), model))

    async def encode(request: Request) -> Response:
        with timed("/encode"):
            return _respond(await embeddings.encode(request, _embed(manager, request, "text"), model))

    calls.count(add_routes)
    app.add_api_route("/v1/embeddings", v1_embeddings, methods=["POST"], include_in_schema=False)
    app.add_api_route("/encode", encode, methods=["POST", "PUT"], include_in_schema=False)


def _embed(manager: Any, request: Request, field: str) -> Embed:
    async def embed(prompts: Prompts, options: dict[str, Any]) -> list[dict[str, Any]]:
        obj = io_struct.GenerateReqInput(
            **prompts,
            sampling_params={"max_new_tokens": 0},
            return_embedding=options or True,
            return_toploc_fingerprints=False,
        )
        try:
            answers = await anext(manager.generate_request(obj, request))
        except ValueError as error:
            at = _place(error, prompts)
            raise EngineRefused(str(error), None if at is None else f"{field}[{at}]") from error
        metas = [answer["meta_info"] for answer in answers]
        for meta in metas:
            if ROWS_UNAVAILABLE in meta:
                raise RequestFailed(*meta[ROWS_UNAVAILABLE].split(": ", 1))
        return metas

    return embed


def _place(error: ValueError, prompts: Prompts) -> int | None:
    """Which of the prompts SGLang refused: it does not say."""
    if not isinstance(error, PromptRefused):
        return None
    each = prompts.get("input_ids") or prompts["text"]
    return next((i for i, prompt in enumerate(each) if prompt is error.prompt), None)


def _respond(answer: dict[str, Any] | Body) -> Response:
    if isinstance(answer, Body):
        return Response(answer.content, media_type=answer.media_type, headers=answer.headers)
    response: Response = orjson_response(answer)
    return response
