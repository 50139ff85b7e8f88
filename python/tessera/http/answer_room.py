"""Holds room for large answers until they were sent, and sends them piece by piece."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tessera.http.asgi import App, Message, Receive, Scope, Send
from tessera.limits import PIECE_BYTES, PIECE_SECONDS
from tessera.room import Lease, Room, lease


class AnswerRoom:
    """ASGI middleware: each request has a `Lease`, which ends once its answer was sent, or is not wanted any more.

    The server would copy a body given in one piece, and say that it was sent.

    Args:
        app: the wrapped application.
        room: what the requests share.
        left: whether a request's client has left.
    """

    def __init__(self, app: App, room: Room, left: Callable[[Scope, Receive], Callable[[], Awaitable[bool]]]) -> None:
        self._app = app
        self._room = room
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = Lease(self._room, self._left(scope, receive))

        async def sending(message: Message) -> None:
            if not own.is_held or message["type"] != "http.response.body":
                await send(message)
                return
            await _in_pieces(message, send)
            if not message.get("more_body", False):
                own.release()  # not at the end of the request: SGLang's streams have a task after it

        token = lease.set(own)
        try:
            await self._app(scope, receive, sending)
        finally:
            lease.reset(token)
            own.release()


async def _in_pieces(message: Message, send: Send) -> None:
    """Wait for each piece until the client took most of those before it.

    Raises:
        TimeoutError: it takes too long; the server closes the connection then.
    """
    body, more = memoryview(message.get("body", b"")), message.get("more_body", False)
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        piece: dict[str, Any] = {**message, "body": bytes(body[start : start + PIECE_BYTES])}
        piece["more_body"] = more or start + PIECE_BYTES < len(body)
        await asyncio.wait_for(send(piece), PIECE_SECONDS)
