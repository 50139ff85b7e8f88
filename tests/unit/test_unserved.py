"""Routes that have no place for our fields."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from tessera.errors import BadRequest
from tessera.http.unserved import FIELDS, Unserved

Message = MutableMapping[str, Any]


def call(content: bytes, kind: str = "http", **options: Any) -> tuple[list[bytes], list[Message]]:
    """What the route reads of a body that comes in two pieces, and what is sent without it."""
    half = len(content) // 2
    pieces = [content[:half], content[half:]]
    read: list[bytes] = []
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.append(message)

    async def route(scope: Message, receive: Any, send: Any) -> None:
        read.append((await receive())["body"])

    asyncio.run(Unserved(route, **{"fingerprints_required": False, **options})({"type": kind}, receive, send))
    return read, sent


def body(**fields: Any) -> bytes:
    """Of a request."""
    return orjson.dumps({"model": "tiny", **fields})


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_each_field_is_refused(name: str) -> None:
    """Whatever is asked for; null and false ask for nothing, and the route reads what came."""
    with pytest.raises(BadRequest, match="/v1/chat/completions") as caught:
        call(body(**{name: {"pooling": "median"}}))
    assert caught.value.field == name
    for nothing in (None, False):
        assert call(body(**{name: nothing}))[0] == [body(**{name: nothing})]


@pytest.mark.parametrize(
    "content", [b"", b"[1", b"[]", b"7", b'{"a": "return_embedding"}', b'{"a": {"return_embedding": 1}}']
)
def test_other_bodies_are_the_routes_own(content: bytes) -> None:
    """Also what is no JSON, and what only looks like ours."""
    assert call(content)[0] == [content]


def test_a_name_written_with_an_escape() -> None:
    """It is the same name."""
    with pytest.raises(BadRequest):
        call(rb'{"return\u005fembedding": true}')


def test_batches() -> None:
    """Keys of the prompts in a batch are looked at too, where there is one."""
    with pytest.raises(BadRequest, match="parameters"):
        call(body(instances=[{}, {"return_embedding": True}]), batch="instances", instead='"parameters"')
    inside = body(instances=[{"text": "a"}], parameters={"return_embedding": True})
    assert call(inside, batch="instances")[0] == [inside]


def test_fingerprints_of_every_response() -> None:
    """Where they are promised, a request has to say that it wants none."""
    for fields in ({}, {"return_toploc_fingerprints": None}, {"return_toploc_fingerprints": True}):
        with pytest.raises(BadRequest, match="return_toploc_fingerprints"):
            call(body(**fields), fingerprints_required=True)
    declined = body(return_toploc_fingerprints=False)
    assert call(declined, fingerprints_required=True)[0] == [declined]


def test_web_sockets() -> None:
    """They are closed there, and left alone elsewhere."""
    read, sent = call(b"", "websocket", fingerprints_required=True)
    assert (read, [message["type"] for message in sent]) == ([], ["websocket.close"])
    assert call(b"", "websocket")[0] == [b""]


@pytest.mark.parametrize(("value", "refused"), [("true", True), ("false", False)])
def test_forms(value: str, refused: bool) -> None:
    """Parts of a form have the names of fields."""
    part = f'--x\r\nContent-Disposition: form-data; name="return_embedding"\r\n\r\n{value}\r\n--x--\r\n'.encode()
    if refused:
        with pytest.raises(BadRequest):
            call(part)
    else:
        assert call(part)[0] == [part]
