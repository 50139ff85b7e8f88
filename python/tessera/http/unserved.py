"""Routes of SGLang that generate or score, and whose answers have no place for our fields.

They would drop one of our fields and answer 200 without its result, so they refuse it.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from tessera.capabilities.fingerprints.options import FIELD as FINGERPRINTS_FIELD
from tessera.errors import BadRequest
from tessera.http.asgi import App, Receive, Scope, Send, replay_first, whole_body
from tessera.http.schema import request_fields

FIELDS = frozenset(request_fields("GenerateReqInput"))
SERVING = "/generate, /v1/chat/completions, /v1/completions, /invocations"
"""The routes that take our fields, for the message."""

_POLICY_VIOLATION = 1008


class Unserved:
    """ASGI application: a route that refuses our fields, with its body read first.

    Args:
        app: the route's own.
        fingerprints_required: whether every response of this server must have fingerprints; then a request has to say
            that it wants none, and a web socket, which cannot, is closed.
        batch: the key of a list of prompts whose own keys are looked at as well, "" where there is none.
        instead: where the fields belong, for the message.
    """

    def __init__(self, app: App, *, fingerprints_required: bool, batch: str = "", instead: str = SERVING) -> None:
        self._app = app
        self._fingerprints_required = fingerprints_required
        self._batch = batch
        self._instead = instead

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the fields of one request, and pass it on.

        Raises:
            BadRequest: it asks for what this route cannot answer.
        """
        if scope["type"] != "http":
            await self._connect(scope, receive, send)
            return
        message = await whole_body(receive)
        self._check(message.get("body", b""))
        await self._app(scope, replay_first(message, receive), send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._fingerprints_required:
            reason = f"no fingerprints here; those with them are {self._instead}"
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        else:
            await self._app(scope, receive, send)

    def _check(self, body: bytes) -> None:
        found = dict(_found(body, self._batch))
        for name, value in found.items():
            if value is not None and value is not False and value != "false":
                raise BadRequest(name, value, f"nothing on this route; send it to {self._instead}")
        if self._fingerprints_required and found.get(FINGERPRINTS_FIELD) is None:
            raise BadRequest(FINGERPRINTS_FIELD, True, f"false on this route; fingerprints come with {self._instead}")


def _found(body: bytes, batch: str) -> Iterator[tuple[str, Any]]:
    """Our fields in a JSON body, or in the parts of a form."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        for name in FIELDS:
            head, _, tail = body.partition(f'name="{name}"\r\n'.encode())
            if head != body:
                yield name, tail.lstrip(b"\r\n").partition(b"\r\n")[0].decode(errors="replace")
        return
    prompts = value.get(batch) if isinstance(value, dict) else None
    for part in (value, *(prompts if isinstance(prompts, list) else ())):
        if isinstance(part, dict):
            yield from ((name, part[name]) for name in FIELDS & part.keys())
