"""OpenAI's chat and text completions: our fields in, our results on the choices. Main process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Self

from fastapi import Depends, FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, field_validator, model_validator
from sglang.srt.entrypoints.openai import protocol
from sglang.srt.utils.json_response import orjson_response

from tessera import config
from tessera.admission import check_prompts
from tessera.errors import BadRequest, TesseraError
from tessera.fingerprint import admission
from tessera.http.adapters import check_batch
from tessera.http.claims import joined
from tessera.http.openai import Collector, Wanted, admit, collector_of, put_on_choices, with_fields
from tessera.inject.admission import admit_custom
from tessera.inject.carry import raise_late_error
from tessera.inject.matrices import BASE64_FIELD
from tessera.inject.options import FIELD
from tessera.sampling import text


class _Fields(BaseModel):
    """Our fields, which pydantic would drop; `tessera.http.openai.admit` checks them."""

    return_embedding: Any = None
    return_hidden_states: Any = False
    hidden_states_format: Any = None
    input_embed_overrides: Any = None
    return_toploc_fingerprints: Any = None
    toploc_verification_fingerprint_to_validate: Any = None
    toploc_nonce: Any = None
    output_ids: Any = None
    return_input_ids: Any = None
    return_output_ids: Any = None
    return_row_hashes: Any = None

    @model_validator(mode="before")
    @classmethod
    def _no_matrices(cls, body: Any) -> Any:
        """Fields of /generate that pydantic would drop, and with them the vectors that were to be the prompt."""
        for name in ("input_embeds", BASE64_FIELD):
            if isinstance(body, dict) and body.get(name) is not None:
                raise BadRequest(name, body[name], f"nothing on this route: use {FIELD} here, or /generate")
        return body


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
        rows = self.toploc_verification_fingerprint_to_validate, self.return_embedding, self.return_hidden_states
        least = 0 if any(own not in (None, False) for own in rows) else 1
        if self.max_tokens is not None and self.max_tokens < least:
            raise ValueError("max_tokens must be positive")
        return self


def add_routes(app: FastAPI, validate_json_request: Callable[..., Any]) -> None:
    """Chats, ``/invocations`` among them, and text completions: SGLang's own handlers, with our fields around them."""

    async def chat_completions(request: ChatCompletionRequest, raw_request: Request) -> Any:
        tokens = request.max_completion_tokens or request.max_tokens
        serving = raw_request.app.state.openai_serving_chat
        request.input_ids, tail = joined("input_ids", request.input_ids, request.output_ids, _claim(request))
        by_messages = request.input_ids is None
        _check_adapters(request, None)
        if by_messages and _claim(request) is not None:
            tail = _claimed_answer(request, serving.tokenizer_manager.tokenizer)
        kind = "chat.completion.chunk"
        return await _handle(serving, request, raw_request, tokens, kind, tail, either_end=by_messages)

    async def completions(request: CompletionRequest, raw_request: Request) -> Any:
        if config.active.guarded:
            check_prompts("prompt", request.prompt, config.active.vocabulary)
        serving = raw_request.app.state.openai_serving_completion
        several = isinstance(request.prompt, list) and not isinstance(next(iter(request.prompt), 0), int)
        _check_adapters(request, len(request.prompt) if several else None)
        request.prompt, tail = joined("prompt", request.prompt, request.output_ids, _claim(request))
        return await _handle(serving, request, raw_request, request.max_tokens, "text_completion", tail)

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


def _claim(request: Any) -> Any:
    return request.toploc_verification_fingerprint_to_validate


def _claimed_answer(request: Any, tokenizer: Any) -> int:
    """Let SGLang append the last message's text to the prompt, as it was generated; returns its number of tokens."""
    last = request.messages[-1] if request.messages else None
    if last is None or last.role != "assistant":
        return 0
    if not isinstance(last.content, str):
        raise BadRequest("messages", last.content, "an answer that is a text; verify others by their token ids")
    request.continue_final_message = True
    ids: list[int] = tokenizer.encode(last.content)
    return len(ids) - (ids[:1] == [tokenizer.bos_token_id])


def _check_cache_keys(request: Any) -> None:
    """SGLang's classes take lists of these, and its handlers answer them with a 500."""
    for name in ("extra_key", "cache_salt"):
        if getattr(request, name):
            text(name, getattr(request, name))


async def _handle(
    serving: Any,
    request: Any,
    raw_request: Request,
    max_new_tokens: int | None,
    kind: str,
    tail: int,
    *,
    either_end: bool = False,
) -> Any:
    if config.active.guarded:
        _check_cache_keys(request)
    if config.injection is not None:
        request.custom_params = admit_custom(request.input_embed_overrides, request.custom_params, config.injection)
    wanted = Wanted(
        request.return_embedding,
        request.return_hidden_states,
        request.hidden_states_format,
        request.custom_params,
        max_new_tokens,
        request.n,
        admission.Fields(*(getattr(request, name) for name in admission.Fields._fields)),
        tail,
        either_end,
    )
    settings = config.active
    request.custom_params, collector = admit(wanted, rows=settings.rows, hidden_size=settings.hidden_size)
    if collector is not None and settings.rows:
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
        answer.body_iterator = with_fields(answer.body_iterator, collector, model, kind)  # type: ignore[arg-type]
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
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # of anything but this, SGLang logs a traceback
            raise ValueError(str(error)) from error
        raise
