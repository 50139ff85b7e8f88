"""Bodies that a route cannot read: 400 with the field, never a 500, and nothing of the server's files."""

import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sglang.srt.utils.json_response import orjson_response

from tessera import config
from tessera.errors import BadRequest, EngineRefused
from tessera.limits import MAX_ECHOED_CHARACTERS
from tessera_patches.core import calls

Answer = Callable[[Request, Exception], Awaitable[Response]]

_MOST_ERRORS = 8
"""A union of types gives one error for each; the first say enough."""
_READER = "request_body_to_args"
"""The function of FastAPI's that makes the route's request from the body."""
_ENGINE = "generate_request"
"""The function of SGLang's that refuses requests with a ``ValueError``; Ollama's routes do not catch it."""
_PARSERS = {"parse_function_call_request", "separate_reasoning_request"}
"""Routes of SGLang's that take a client's text apart, and compute nothing else."""
_TEMPLATE = "_process_messages"
"""The function of SGLang's that renders a conversation, and computes nothing else."""


def install(app: FastAPI, answer_error: Answer) -> None:
    """Answer such bodies instead of SGLang, whose message contains paths of its files and the whole body.

    Args:
        app: SGLang's.
        answer_error: answers one of our errors.
    """
    stock: Any = app.exception_handlers[RequestValidationError]

    async def answer_invalid(request: Request, error: Exception) -> Response:
        errors = error.errors() if isinstance(error, RequestValidationError) else []
        for found in errors:
            refused = found.get("ctx", {}).get("error")
            if isinstance(refused, BadRequest):  # raised while pydantic made the request
                return await answer_error(request, refused)
        response = await stock(request, error)
        content = orjson.loads(response.body)
        (content.get("error") or content)["message"] = _message(errors)
        answer: Response = orjson_response(content, status_code=response.status_code)
        return answer

    async def answer_mistake(request: Request, error: Exception) -> Response:
        """Answer 400 to a client's mistake that SGLang raises and does not catch, which would be a 500."""
        functions = _raised_in(error)
        if _READER in functions:  # its own validators fail on bodies and fields of another JSON type than they expect
            unreadable = {"loc": ("body",), "msg": f"not what this route takes: {error}"}
            return await answer_invalid(request, RequestValidationError([unreadable]))
        if message := _mistake(error, functions):
            return await answer_error(request, EngineRefused(message))
        raise error

    calls.count(install)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    for kind in (TypeError, AttributeError, LookupError, ValueError):
        app.add_exception_handler(kind, answer_mistake)


def _message(errors: Any) -> str:
    return "; ".join(_line(error) for error in errors[:_MOST_ERRORS]) or "the body is not what this route takes"


def _line(error: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in error.get("loc", ()) if part != "body")[:MAX_ECHOED_CHARACTERS]
    return f"{place or 'body'}: {error.get('msg', '')[:MAX_ECHOED_CHARACTERS]}"


def of_anthropic(original: Callable[..., Any], serving: Any, *args: Any, **kw: Any) -> Any:
    """AROUND ``AnthropicServing._error_response``. That route takes whatever is raised for a failure of the server."""
    error = sys.exception() if config.active.guarded else None
    message = str(error) if isinstance(error, BadRequest) else _mistake(error, _raised_in(error))
    if message is None:
        return original(serving, *args, **kw)
    return original(serving, status_code=400, error_type="invalid_request_error", message=message)


def _raised_in(error: BaseException | None) -> set[str]:
    """The functions that an error came through."""
    return set() if error is None else {frame.name for frame in traceback.extract_tb(error.__traceback__)}


def _mistake(error: BaseException | None, functions: set[str]) -> str | None:
    """What a client did wrong; None if the failure is the server's."""
    if _TEMPLATE in functions:
        return f"messages: the chat template cannot render them: {error}"[:MAX_ECHOED_CHARACTERS]
    if _PARSERS & functions or (_ENGINE in functions and isinstance(error, ValueError)):
        return str(error)
    return None
