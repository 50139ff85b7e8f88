"""From status and bytes of an answer to its JSON, or to the error that it stands for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tessera.client import errors

FLAG = "--enable-return-hidden-states"
NO_ROWS = f"the server has no embeddings and no hidden states; it needs sglang-tessera and {FLAG}"
ECHOED = 300
"""Characters of an unexpected answer that a message shows."""
LONGEST_MESSAGE = 2000
"""Characters of a server's own description that are passed on."""
LONGEST_WAIT = 3600.0
"""Seconds of a ``Retry-After`` that are believed."""
_HINTS: Mapping[int, str] = {
    HTTPStatus.NOT_FOUND: "; is the URL that of the server itself, and not of a proxy, and has it sglang-tessera?",
    HTTPStatus.UNPROCESSABLE_ENTITY: "; a proxy takes less than the server (docs/guide/client.md, Behind a proxy)",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came over HTTP. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes | bytearray


def check_status(answer: Answer) -> None:
    """Raise the error that a status stands for; below 300 nothing."""
    if answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    raise status_error(answer.status, error_body(answer.content), _seconds(answer.headers.get("retry-after")))


def status_error(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> errors.StatusError:
    """The error for a status and the server's description of it: ``message``, ``code``, ``param``."""
    message = str(body.get("message") or "no further description")[:LONGEST_MESSAGE]
    kind, hint = _kind(status, message)
    code, field = body.get("code"), body.get("param")
    return kind(
        f"HTTP {status}: {message}{hint}",
        status=status,
        code=code if isinstance(code, str) else None,
        field=field if isinstance(field, str) else None,
        retry_after=retry_after,
    )


def _kind(status: int, message: str) -> tuple[type[errors.StatusError], str]:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return errors.ServerError, "; if it stays, look at the server's log"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return errors.Unauthorized, "; give the server's key with api_key="
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return errors.RateLimited, "; send fewer requests at once"
    if FLAG in message:
        return errors.HiddenStatesUnsupported, f"; {NO_ROWS}"
    return errors.RequestRefused, _HINTS.get(status, "")


def parse_json(answer: Answer) -> Any:
    """The JSON of a good answer.

    Raises:
        ClientError: an error status, or no JSON.
    """
    check_status(answer)
    try:
        return json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidResponse(
            f"the answer is no JSON but {shown(answer.content)}; is this an SGLang server?"
        ) from error


def is_ours(answer: Answer) -> bool:
    """Whether an error has one of Tessera's codes: then its route is there."""
    return isinstance(error_body(answer.content).get("code"), str)


def error_body(content: bytes | bytearray) -> Mapping[str, Any]:
    """Ours and SGLang's errors, Starlette's ``detail``, or whatever text there is."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {"message": shown(content)} if content else {}
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        return error if "message" in error else {"message": shown(error.get("detail", error))}
    return {"message": shown(error)}


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` as seconds; a date, which our servers do not send, counts as absent."""
    try:
        return None if header is None else min(max(float(header), 0.0), LONGEST_WAIT)
    except ValueError:
        return None


def shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    text = bytes(value[:ECHOED]).decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
    return text[:ECHOED] + ("…" if len(text) > ECHOED else "")
