"""Bodies of routes that are not ours: bounded by what they announce, and by what comes."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from tessera.http.body_limit import BodyLimit, Message, Receive, Send


class Echo:
    """An app that reads the whole body and answers how long it was; an early client is answered 400."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        self.calls += 1
        seen, status, more = 0, 200, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                status = 400
                break
            seen += len(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": str(seen).encode()})


def post(pieces: list[bytes], *, path: str = "/generate", announced: str | None = None) -> tuple[int, bytes, int]:
    """Status and body of the answer, and how often the app was called."""
    app, sent = Echo(), list[Message]()
    waiting = [{"type": "http.request", "body": b, "more_body": i + 1 < len(pieces)} for i, b in enumerate(pieces)]

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [] if announced is None else [(b"content-length", announced.encode())]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(BodyLimit(app, ["/generate"], 10, "--option")(scope, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], sent[1]["body"], app.calls


def test_within() -> None:
    """Untouched."""
    assert post([b"12345", b"67890"], announced="10") == (200, b"10", 1)


@pytest.mark.parametrize("announced", ["11", "99999999999999999999"])
def test_announced(announced: str) -> None:
    """Refused without reading it."""
    status, body, calls = post([], announced=announced)
    assert (status, calls) == (413, 0)
    assert orjson.loads(body)["error"]["code"] == "too_large"


@pytest.mark.parametrize("announced", [None, "5", "many"])
def test_longer_than_announced(announced: str | None) -> None:
    """The app's own answer to a client that left is not what the client sees."""
    status, body, calls = post([b"12345", b"678901", b"2"], announced=announced)
    assert (status, calls) == (413, 1)
    assert "--option" in orjson.loads(body)["error"]["message"]


def test_other_routes() -> None:
    """They have limits of their own, or none."""
    assert post([b"1" * 50], path="/update_weights_from_tensor", announced="50") == (200, b"50", 1)
