"""OpenAI's chat and text completions: our fields in, our results on the choices. Main process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel
from sglang.srt.entrypoints.openai import protocol
from sglang.srt.utils.json_response import orjson_response

from tessera import config
from tessera.errors import TesseraError
from tessera.http.openai import Collector, Wanted, admit, collector_of, put_on_choices, with_last_chunk
from tessera.inject.admission import admit_custom, raise_late_error


class ChatCompletionRequest(protocol.ChatCompletionRequest):
    """With our fields, which pydantic would drop; `tessera.http.openai.admit` checks them."""

    return_embedding: Any = None
    return_hidden_states: Any = False
    hidden_states_format: Any = None
    input_embed_overrides: Any = None


class CompletionRequest(protocol.CompletionRequest):
    """As `ChatCompletionRequest`."""

    return_embedding: Any = None
    return_hidden_states: Any = False
    hidden_states_format: Any = None
    input_embed_overrides: Any = None


def add_routes(app: FastAPI, validate_json_request: Callable[..., Any]) -> None:
    """``/v1/chat/completions`` and ``/v1/completions``: SGLang's own handlers, with our fields around them."""

    async def chat_completions(request: ChatCompletionRequest, raw_request: Request) -> Any:
        tokens = request.max_completion_tokens or request.max_tokens
        serving = raw_request.app.state.openai_serving_chat
        return await _handle(serving, request, raw_request, tokens, "chat.completion.chunk")

    async def completions(request: CompletionRequest, raw_request: Request) -> Any:
        serving = raw_request.app.state.openai_serving_completion
        return await _handle(serving, request, raw_request, request.max_tokens, "text_completion")

    json_only = [Depends(validate_json_request)]
    app.add_api_route("/v1/chat/completions", chat_completions, methods=["POST"], dependencies=json_only)
    app.add_api_route("/v1/completions", completions, methods=["POST"], dependencies=json_only)


async def _handle(serving: Any, request: Any, raw_request: Request, max_new_tokens: int | None, kind: str) -> Any:
    if config.injection is not None:
        request.custom_params = admit_custom(request.input_embed_overrides, request.custom_params, config.injection)
    wanted = Wanted(
        request.return_embedding,
        request.return_hidden_states,
        request.hidden_states_format,
        request.custom_params,
        max_new_tokens,
    )
    settings = config.active
    request.custom_params, collector = admit(wanted, rows=settings.rows, hidden_size=settings.hidden_size)
    if collector is not None:
        request.return_hidden_states = False  # ours from here on
    answer = await serving.handle_request(request, raw_request)
    raise_late_error(request.custom_params)
    if collector is None:
        return answer
    if collector.error is not None:
        raise collector.error
    return _with_fields(answer, collector, request.model, kind)


def _with_fields(answer: Any, collector: Collector, model: str, kind: str) -> Response | Any:
    if isinstance(answer, StreamingResponse):
        answer.body_iterator = with_last_chunk(answer.body_iterator, collector, model, kind)  # type: ignore[arg-type]
        return answer
    if isinstance(answer, BaseModel):
        return orjson_response(put_on_choices(jsonable_encoder(answer), collector))
    return answer  # an error of SGLang's


Outputs = AsyncIterator[Any]


def collected(original: Callable[..., Outputs], manager: Any, obj: Any, request: Any = None) -> Outputs:
    """AROUND ``TokenizerManager.generate_request``. Requests that are not OpenAI's or did not ask pass untouched."""
    collector = collector_of(getattr(obj, "sampling_params", None))
    outputs = original(manager, obj, request)
    return outputs if collector is None else _collected(outputs, collector)


async def _collected(outputs: Outputs, collector: Collector) -> Outputs:
    try:
        async for output in outputs:
            if isinstance(output, list):
                for index, choice in enumerate(output):
                    collector.note(index, choice["meta_info"])
            else:
                collector.note(output.get("index", 0), output["meta_info"])
            yield output
    except TesseraError as error:
        collector.error = error
        raise
