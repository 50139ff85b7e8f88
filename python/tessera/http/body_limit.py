"""Bounds the bodies of requests in size and in time, before anything decodes them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress

import orjson

from tessera.errors import BadRequest, Described, TooLarge, TooSlow
from tessera.http.asgi import App, Message, Receive, Scope, Send
from tessera.http.error_body import error_body, note
from tessera.limits import DRAIN_BYTES, DRAIN_SECONDS


class BodyLimit:
    """ASGI middleware: a longer body is a 413, one that takes longer a 408.

    Args:
        app: the wrapped application.
        most: the most bytes of each route that has a limit, and what raises it, for the message; "" where nothing does.
        seconds: how long a client may take to send the body, on every route.
    """

    def __init__(self, app: App, most: Mapping[str, tuple[int, str]], seconds: float) -> None:
        self._app = app
        self._most = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, option = self._most.get(scope["path"], (math.inf, ""))
        body = _Body(receive, most, option, self._seconds)
        if _announced(scope) > most:
            body.refusal = body.too_large
        else:
            await self._answered(scope, body, send)
        if body.refusal is not None:
            await refuse(body.refusal, scope, send, body.rest)

    async def _answered(self, scope: Scope, body: _Body, send: Send) -> None:
        """Run the app. If the body is refused, it sees the client leave, and its response is not sent."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if started or body.refusal is None:
                started = True
                await send(message)

        try:
            await self._app(scope, body.receive, sending)
        except Exception:  # what the app makes of a client that left
            if body.refusal is None or started:
                raise
        if started:
            body.refusal = None


class _Body:
    """The body of one request, as it comes.

    Attributes:
        refusal: why no more of it is read.
    """

    def __init__(self, receive: Receive, most: float, option: str, seconds: float) -> None:
        self._receive = receive
        self._most = most
        self._option = option
        self._seconds = seconds
        self._until = 0.0
        self._seen = 0
        self._whole = False
        self.refusal: BadRequest | None = None

    @property
    def too_large(self) -> TooLarge:
        """The error for a body with more bytes than allowed."""
        advice = f" ({self._option})" if self._option else ""
        return TooLarge("body", Described(f"more than {self._most} bytes"), f"at most {self._most} bytes{advice}")

    @property
    def rest(self) -> Receive | None:
        """Receives what is left of the body without a limit in time; None if nothing is."""
        return None if self._whole or isinstance(self.refusal, TooSlow) else self._receive

    async def receive(self) -> Message:
        """The next message for the app."""
        if self._whole:  # only whether the client leaves is still of interest, at any time
            return await self._receive()
        # From the moment it is asked for: a route that reads nothing may take as long as it likes.
        self._until = self._until or asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            allowed = f"{self._seconds:g} seconds (--body-max-seconds)"
            self.refusal = TooSlow("body", Described(f"{self._seen} bytes, and not all of it"), allowed)
            return {"type": "http.disconnect"}
        self._seen += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._seen > self._most:
            self.refusal = self.too_large
        return message if self.refusal is None else {"type": "http.disconnect"}


async def refuse(error: BadRequest, scope: Scope, send: Send, unread: Receive | None = None) -> None:
    """Answer, and close the connection.

    Args:
        error: the answer.
        scope: of the request.
        send: to the client.
        unread: where there may be more of the body. It is read on for a while: to close a connection on which data
            comes would cut the answer off too.
    """
    note(error, f"{scope['method']} {scope['path']}")
    content = orjson.dumps(error_body(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": unread is not None})
    if unread is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await _drain(unread)
        await send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive) -> None:
    left, more = DRAIN_BYTES, True
    while left > 0 and more:
        message = await receive()
        left -= len(message.get("body", b""))
        more = message.get("more_body", False)


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
