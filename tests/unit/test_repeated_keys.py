"""Keys that are in an object twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import BadRequest
from tessera.http.asgi import Message, Receive, Scope, Send
from tessera.http.repeated_keys import UniqueFields, refuse_repeated_keys


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"text": 5, "text": "a"}', "text"),
        ('{"a": "b", "text": "x", "text" \n : "x"}', "text"),
        (r'{"text": 5, "te\u0078t": "a"}', "text"),
        ('{"claims": [{"nonce": 5, "nonce": "a"}]}', "nonce"),
        ('{"claims": [1, {"nonce": 5, "nonce": "a"}]}', "nonce"),
        ('{"claims": [[{"nonce": 5, "nonce": "a"}]]}', "nonce"),
        (r'{"": 1, "": 2}', ""),
    ],
)
def test_twice(body: str, key: str) -> None:
    """Anywhere, however it is written; both values are named."""
    with pytest.raises(BadRequest) as caught:
        refuse_repeated_keys(body.encode(), orjson.loads(body))
    assert caught.value.field == key
    assert "5, 'a'" in str(caught.value) or "'x', 'x'" in str(caught.value) or "1, 2" in str(caught.value)


def test_many_keys() -> None:
    """Each is looked at once: 200,000 of them would take minutes if each were compared with all."""
    keys = ",".join(f'"k{i}":0' for i in range(200_000))
    for body in (f'{{{keys},"k1":1}}', f'{{{keys},"pooling":1,"pooling":2}}'):
        with pytest.raises(BadRequest):
            refuse_repeated_keys(body.encode(), orjson.loads(body))


def test_too_deep() -> None:
    """A 400, not an error of ours."""
    body = b'{"a":' * 1000 + b"1" + b"}" * 1000
    with pytest.raises(BadRequest) as caught:
        refuse_repeated_keys(body, orjson.loads(body))
    assert caught.value.field == "body"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('":\\{a ', max_size=9),
    lambda own: st.lists(own, max_size=4) | st.dictionaries(st.text('":\\a ', max_size=4), own, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text('":\\a ', max_size=4), JSON, max_size=5), st.sampled_from([None, 1]))
def test_objects_without_repetition_pass(value: dict[str, Any], indent: int | None) -> None:
    """Whatever their texts contain."""
    body = json.dumps(value, indent=indent).encode()
    refuse_repeated_keys(body, orjson.loads(body))


@given(st.dictionaries(st.text('":\\a ', max_size=4), JSON, min_size=1, max_size=5))
def test_objects_with_repetition_do_not(value: dict[str, Any]) -> None:
    """The first key once more, at the end."""
    key = json.dumps(next(iter(value)))
    body = f"{json.dumps(value)[:-1]}, {key}: 1}}".encode()
    with pytest.raises(BadRequest):
        refuse_repeated_keys(body, orjson.loads(body))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"text": "a", "return_embedding": true}', 200),
        ('{"return_embedding": 5, "text": "a", "return_embedding": true}', 400),
        ('{"a": {"return_embedding": 5, "return_embedding": true}}', 400),
        ('{"text": "\\"return_embedding\\":", "return_embedding": true}', 200),
        ('{"text": 1, "text": "SGLang\'s own", "return_embedding": true}', 200),
        ('{"return_embedding": 1, "return_embedding": ', 200),  # broken: the app says so
        ('{"a": {"return_embedding": 1}, "b": {"return_embedding": 2}}', 200),
    ],
)
def test_fields_of_ours_in_bodies_of_others(body: str, status: int) -> None:
    """What passes reaches the app byte by byte."""
    sent, seen = list[Message](), bytearray()
    pieces = [body[:20].encode(), body[20:].encode()]

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            seen.extend(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": []}
    asyncio.run(UniqueFields(app, ["/generate"], ["return_embedding", "return_hidden_states"])(scope, receive, send))
    assert sent[0]["status"] == status
    if status == 200:
        assert seen.decode() == body
    else:
        assert orjson.loads(sent[1]["body"])["error"]["param"] == "return_embedding"
