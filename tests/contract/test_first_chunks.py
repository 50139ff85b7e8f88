"""A stream of ``/generate`` that SGLang refuses has the status that it has without a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI
from sglang.srt.entrypoints import http_server as stock
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from tessera import config
from tessera.errors import ROWS_NOT_FINITE, TooLarge
from tessera_patches.http.http_server import add_generate, answer_error


def output(reason: Any = None, **fields: Any) -> dict[str, Any]:
    """Of the engine."""
    return {"text": "", "output_ids": [], "meta_info": {"id": "a", "finish_reason": reason}, **fields}


def aborted(status: int | None, err_type: str | None) -> dict[str, Any]:
    """As SGLang writes the end of a request."""
    return {"type": "abort", "message": "no", "status_code": status, "err_type": err_type}


def post(monkeypatch: pytest.MonkeyPatch, *steps: Any) -> tuple[httpx.Response, list[str]]:
    """The answer of SGLang's own route behind ours, where the engine gives or raises these; and what it aborted."""
    gone: list[str] = []

    async def outputs(*_: Any) -> AsyncIterator[Any]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            yield step

    async def no_pause(_: float) -> None:
        return

    manager = SimpleNamespace(generate_request=outputs, abort_request=gone.append, rid_to_state={"a": None})
    manager.create_abort_task = lambda _: TokenizerManager.create_abort_task(
        manager, SimpleNamespace(is_single=True, rid="a")
    )
    monkeypatch.setattr(stock, "_global_state", SimpleNamespace(tokenizer_manager=manager))
    monkeypatch.setattr(config, "active", config.Settings(tilespec=True))
    app = FastAPI()
    app.add_exception_handler(TooLarge, answer_error)
    add_generate(app, stock.generate_request)

    async def ask() -> httpx.Response:
        monkeypatch.setattr("sglang.srt.managers.tokenizer_manager.asyncio.sleep", no_pause)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post("/generate", json={"text": "a", "stream": True})

    return asyncio.run(ask()), gone


@pytest.mark.parametrize(
    ("step", "status", "message"),
    [
        (ValueError("The input (20000 tokens) is longer"), 400, "The input (20000 tokens) is longer"),
        (output(aborted(400, "BadRequestError")), 400, "no"),
        (output(aborted(503, None)), 503, "no"),
        (TooLarge("return_hidden_states", "up to 9 bytes", "at most 8"), 413, "return_hidden_states: got"),
    ],
)
def test_a_refused_stream(monkeypatch: pytest.MonkeyPatch, step: Any, status: int, message: str) -> None:
    """Its error is JSON, no event."""
    answer, _ = post(monkeypatch, step)
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    "steps",
    [
        (output(), output({"type": "length"})),
        (output(), ValueError("late")),
        (output(aborted(None, None)),),
        (output(aborted(500, ROWS_NOT_FINITE)),),
        (output(aborted(400, "BadRequestError"), index=1), output(index=0)),
    ],
)
def test_other_streams(monkeypatch: pytest.MonkeyPatch, steps: tuple[Any, ...]) -> None:
    """Their events are whole, and SGLang's task, which aborts what a client left, runs after them."""
    answer, gone = post(monkeypatch, *steps)
    assert (answer.status_code, gone) == (200, ["a"])
    *events, done, last = answer.text.split("\n\n")
    assert (done, last) == ("data: [DONE]", "")
    found = [orjson.loads(event.removeprefix("data: ")) for event in events]
    assert found[: sum(isinstance(step, dict) for step in steps)] == [step for step in steps if isinstance(step, dict)]
    assert [event["error"]["message"] for event in found if "error" in event] == [
        str(step) for step in steps if isinstance(step, Exception)
    ]
