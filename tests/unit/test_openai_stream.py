"""Our fields in streams of OpenAI's routes: which chunk has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import orjson
import pytest

from tessera.http.openai import Collector, with_fields

CHAT, TEXT = "chat.completion.chunk", "text_completion"
USAGE = {"choices": [], "usage": {"total_tokens": 3}}
ROWS = np.ones((2, 3), "<f4")
Step = Callable[[], None] | dict[str, Any] | str


def chunk(index: int, kind: str, finish: str | None = None) -> dict[str, Any]:
    """Of SGLang's."""
    shown: dict[str, Any] = {"delta": {"content": "a"}} if kind == CHAT else {"text": "a"}
    return {"choices": [{"index": index, **shown, "finish_reason": finish}]}


def meta(**fields: Any) -> dict[str, Any]:
    """Of one choice, as the engine answers it."""
    return {"id": "x", **fields}


def streamed(kind: str, collector: Collector, *steps: Step) -> list[Any]:
    """The chunks that come out where these go in; a step that can be called is the engine's."""

    async def events() -> AsyncIterator[str]:
        for step in steps:
            if isinstance(step, str):
                yield step
            elif isinstance(step, dict):
                yield f"data: {orjson.dumps(step).decode()}\n\n"
            else:
                step()
        yield "data: [DONE]\n\n"

    async def all_of_them() -> list[str]:
        return [event async for event in with_fields(events(), collector, "tiny", kind)]

    *found, done = asyncio.run(all_of_them())
    assert done == "data: [DONE]\n\n"
    return [orjson.loads(event.removeprefix("data: ")) if event.startswith("data: {") else event for event in found]


@pytest.mark.parametrize("kind", [CHAT, TEXT])
def test_before_usage(kind: str) -> None:
    """Two choices: with each one's finish the fields, then the states of both, then usage."""
    collector = Collector()
    first, second = (
        lambda i=i: collector.note(i, meta(embedding=ROWS[0] * i, output_ids=[i], hidden_states=ROWS * i))
        for i in (0, 1)
    )
    steps: list[Step] = [
        *(chunk(0, kind), first, chunk(0, kind), chunk(0, kind, "stop")),
        *(chunk(1, kind), second, chunk(1, kind, "length")),
    ]
    *own, last = streamed(kind, collector, *steps, USAGE)
    assert last == USAGE
    choices = [one["choices"][0] for one in own]
    assert [one["index"] for one in choices if "embedding" in one] == [0, 1]
    assert all(one["finish_reason"] for one in choices if "embedding" in one or "output_ids" in one)
    states = [one.get("delta", one) for one in choices]
    assert ["hidden_states" in one for one in states] == [False] * 5 + [True] * 2
    assert [one["hidden_states"] for one in states[5:]] == [(ROWS * i).tolist() for i in (0, 1)]


def test_without_usage() -> None:
    """States come before the end of the stream, and before an error's event."""
    for tail in ((), ('data: {"error": {}}\n\n',)):
        collector = Collector()
        collector.note(0, meta(hidden_states=ROWS))
        found = streamed(CHAT, collector, chunk(0, CHAT, "stop"), *tail)
        assert found[1]["choices"][0]["delta"]["hidden_states"] == ROWS.tolist()


def test_fingerprints_with_the_chunk_that_completes_them() -> None:
    """Those of the other choice wait for its own chunk, and other events are what they were."""
    collector = Collector()
    name = "toploc_verification_fingerprints"

    def both() -> None:
        for i in (0, 1):
            collector.note(i, meta(**{name: [f"of {i}"]}))

    found = streamed(CHAT, collector, chunk(0, CHAT), both, ": ping\n\n", chunk(1, CHAT), chunk(0, CHAT, "stop"))
    assert found[1] == ": ping\n\n"
    chunks = [one["choices"][0]["delta"].get(name) for one in found if isinstance(one, dict)]
    assert chunks == [None, ["of 1"], ["of 0"]]


def test_litellm_keeps_chunks_without_text() -> None:
    """It wants this key in the delta of a chat; text completions have none."""
    for kind in (CHAT, TEXT):
        collector = Collector()
        collector.note(0, meta(embedding=ROWS[0], hidden_states=ROWS))
        found = streamed(kind, collector, chunk(0, kind, "stop"))
        marked = [one["choices"][0].get("delta", {}).get("provider_specific_fields") for one in found]
        assert marked == [{} if kind == CHAT else None] * 2
