"""OpenAI's chat and text completions: our fields in, our results on the choices. Main process."""

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Self

from fastapi import Depends, FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, create_model, field_validator, model_validator
from sglang.srt.entrypoints.openai import protocol
from sglang.srt.utils.json_response import orjson_response

from tessera import admission, carry, config
from tessera.capabilities import registry
from tessera.capabilities.fingerprints.answer import without_result
from tessera.carry import Live
from tessera.errors import TesseraError
from tessera.fields import text
from tessera.http.adapters import check_batch
from tessera.http.openai import Collector, collectors, put_on_choices, unrun_chat, unrun_events, with_fields
from tessera.prompts import check_prompts
from tessera.request_fields import one_each
from tessera_patches.core import calls
from tessera_patches.fingerprints.claimed_chats import continue_answer, why_unverifiable


class _Checked(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _check_body(cls, body: Any) -> Any:
        calls.count(cls)
        for capability in registry.CAPABILITIES if isinstance(body, dict) else ():
            capability.check_body(body)
        return body


_OURS: dict[str, Any] = {name: (Any, default) for name, default in registry.declared_fields(openai=True)}
_Fields: Any = create_model("_Fields", __base__=_Checked, **_OURS)
"""Our fields, which pydantic would drop; `tessera.admission` checks them."""


class ChatCompletionRequest(_Fields, protocol.ChatCompletionRequest):
    """``output_ids`` follow ``input_ids`` whose fingerprints are verified."""


class CompletionRequest(_Fields, protocol.CompletionRequest):
    """``output_ids`` follow a ``prompt`` of token ids."""

    @field_validator("max_tokens")
    @classmethod
    def validate_max_tokens_positive(cls, value: int | None) -> int | None:
        """Replaces SGLang's, which refuses 0: `_at_least_one_token` does where the answer would be empty."""
        return value

    @model_validator(mode="after")
    def _at_least_one_token(self) -> Self:
        least = 0 if any(getattr(self, name) not in (None, False) for name in registry.WITHOUT_TOKENS) else 1
        if self.max_tokens is not None and self.max_tokens < least:
            raise ValueError("max_tokens must be positive")
        return self


def add_routes(app: FastAPI, validate_json_request: Callable[..., Any]) -> None:
    """Chats, ``/invocations`` among them, and text completions: SGLang's own handlers, with our fields around them."""

    async def chat_completions(request: ChatCompletionRequest, raw_request: Request) -> Any:
        tokens = request.max_completion_tokens or request.max_tokens
        serving = raw_request.app.state.openai_serving_chat
        fields = _fields(request)
        request.input_ids, tail = admission.extend("input_ids", request.input_ids, fields)
        by_messages = request.input_ids is None
        _check_adapters(request, None)
        if by_messages and any(capability.verifies(fields) for capability in registry.CAPABILITIES):
            if reason := why_unverifiable(request.messages, serving):
                _admit(request, fields, tokens, None)
                return _not_run(request, without_result(reason))
            tail = continue_answer(request, serving)
        kind = "chat.completion.chunk"
        return await _handle(serving, request, raw_request, fields, tokens, kind, tail, either_end=by_messages)

    async def completions(request: CompletionRequest, raw_request: Request) -> Any:
        if config.active.guarded:
            check_prompts("prompt", request.prompt, config.active.vocabulary)
        serving = raw_request.app.state.openai_serving_completion
        several = isinstance(request.prompt, list) and not isinstance(next(iter(request.prompt), 0), int)
        _check_adapters(request, len(request.prompt) if several else None)
        fields = _fields(request)
        request.prompt, tail = admission.extend("prompt", request.prompt, fields)
        return await _handle(serving, request, raw_request, fields, request.max_tokens, "text_completion", tail)

    calls.count(add_routes)
    json_only = [Depends(validate_json_request)]
    for path, endpoint, dependencies in (
        ("/v1/chat/completions", chat_completions, json_only),
        ("/v1/completions", completions, json_only),
        ("/invocations", chat_completions, []),
    ):
        app.add_api_route(path, endpoint, methods=["POST"], dependencies=dependencies, include_in_schema=False)


def _check_adapters(request: Any, prompts: int | None) -> None:
    if config.active.rows or config.active.inject:
        check_batch(request.lora_path, prompts)


def _fields(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in _OURS}


def _check_cache_keys(request: Any) -> None:
    """SGLang's classes take lists of these, and its handlers answer them with a 500."""
    for name in ("extra_key", "cache_salt"):
        if getattr(request, name):
            text(name, getattr(request, name))


async def _handle(
    serving: Any,
    request: Any,
    raw_request: Request,
    fields: dict[str, Any],
    max_new_tokens: int | None,
    kind: str,
    tail: int,
    *,
    either_end: bool = False,
) -> Any:
    params, live = _admit(request, fields, max_new_tokens, tail, either_end=either_end)
    server = admission.server()
    if carry.take(params) is carry.NOTHING and registry.any_always(server):
        # Else SGLang's request would be admitted as one that is silent.
        params = carry.put(params, live, {})
    if carry.take(params) is carry.NOTHING:
        return await serving.handle_request(request, raw_request)
    request.custom_params = params["custom_params"]
    collector = collectors[live] = Collector(generates=max_new_tokens != 0)
    if server.rows:
        request.return_hidden_states = False  # ours from here on
    answer = await serving.handle_request(request, raw_request)
    if live.error is not None:
        raise live.error
    return _with_fields(answer, collector, request.model, kind)


def _admit(
    request: Any, fields: dict[str, Any], max_new_tokens: int | None, tail: int | None, *, either_end: bool = False
) -> tuple[Any, Live]:
    if config.active.guarded:
        _check_cache_keys(request)
    params = {"custom_params": request.custom_params, "max_new_tokens": max_new_tokens, "n": request.n or 1}
    for name in registry.LISTED if config.active.rows else ():
        one_each(name, fields[name], None)
    return admission.admit(fields, params, admission.server(), tail=tail, either_end=either_end)


def _not_run(request: Any, fields: dict[str, Any]) -> Response:
    """The answer to a chat that is not run, with our fields."""
    if request.stream:
        usage = request.stream_options is not None and request.stream_options.include_usage
        events = unrun_events(fields, request.model, usage=usage)
        return StreamingResponse(iter(events), media_type="text/event-stream")
    answer: Response = orjson_response(unrun_chat(fields, request.model))
    return answer


def _with_fields(answer: Any, collector: Collector, model: str, kind: str) -> Response | Any:
    if isinstance(answer, StreamingResponse):
        answer.body_iterator = with_fields(answer.body_iterator, collector, model, kind)  # type: ignore[arg-type]
        return answer
    if isinstance(answer, BaseModel):
        return orjson_response(put_on_choices(jsonable_encoder(answer), collector))
    return answer  # an error of SGLang's


Outputs = AsyncIterator[Any]


def collect_outputs(original: Callable[..., Outputs], manager: Any, obj: Any, request: Any = None) -> Outputs:
    """AROUND ``TokenizerManager.generate_request``. Requests that are not OpenAI's or did not ask pass untouched."""
    live = carry.live(getattr(obj, "sampling_params", None))
    outputs = original(manager, obj, request)
    collector = None if live is None else collectors.get(live)
    return outputs if live is None or collector is None else _collect(outputs, live, collector)


async def _collect(outputs: Outputs, live: Live, collector: Collector) -> Outputs:
    try:
        async for output in outputs:
            if isinstance(output, list):
                for index, choice in enumerate(output):
                    collector.note(index, choice["meta_info"])
            else:
                collector.note(output.get("index", 0), output["meta_info"])
            yield output
    except TesseraError as error:
        live.error = error
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # of anything but this, SGLang logs a traceback
            raise ValueError(str(error)) from error
        raise
