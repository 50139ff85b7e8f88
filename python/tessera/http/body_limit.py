"""Bounds the bodies of requests to routes that are not ours, before anything decodes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

import orjson

from tessera.errors import TooLarge
from tessera.http.error_body import error_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class BodyLimit:
    """ASGI middleware: a longer body is a 413, and read no further.

    Args:
        app: what is behind it.
        paths: the routes that are bounded.
        most: the most bytes.
        option: what raises the limit, for the message.
    """

    def __init__(self, app: App, paths: Collection[str], most: int, option: str) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._most = most
        self._error = TooLarge("body", f"more than {most} bytes", f"at most {most} bytes ({option})")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        if _announced(scope) > self._most:
            await self._refuse(send)
            return
        await self._counted(scope, receive, send)

    async def _counted(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """A body that did not announce its length, or not truly: the app sees its client leave at the limit."""
        seen = 0
        begun = False

        async def counting() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            return {"type": "http.disconnect"} if seen > self._most else message

        async def answering(message: Message) -> None:
            nonlocal begun
            if seen <= self._most:
                begun = True
                await send(message)
            elif not begun:
                begun = True
                await self._refuse(send)

        await self._app(scope, counting, answering)
        if not begun and seen > self._most:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        content = orjson.dumps(error_body(self._error))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self._error.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _announced(scope: MutableMapping[str, Any]) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
