"""``/v1/embeddings`` and ``/encode`` without an engine: what they ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from tessera.capabilities.embed import routes
from tessera.capabilities.embed.inputs import Tokenizer
from tessera.capabilities.embed.options import EmbedFields, EmbedOptions, Pooling, options_of
from tessera.capabilities.embed.routes import Model
from tessera.errors import ROW_STORE_FAILED, BadRequest, EngineRefused, RequestFailed
from tessera.fields import read
from tessera.http import error_body


class Request:
    """A body."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._content = orjson.dumps(body)

    @property
    def headers(self) -> Mapping[str, str]:
        """None."""
        return {}

    async def stream(self) -> AsyncIterator[bytes]:
        """In one piece."""
        yield self._content


def engine_request(body: dict[str, Any], model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """The prompts and the ``return_embedding`` object of one request."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []

    async def embed(prompts: dict[str, Any], options: dict[str, Any]) -> list[dict[str, Any]]:
        found.append((prompts, options))
        return [{"embedding": np.zeros(4, "<f4"), "embedding_options": options, "prompt_tokens": 1}]

    route = routes.openai if "input" in body else routes.encode
    asyncio.run(route(Request(body), embed, model))
    return found[0]


LAST = EmbedOptions(pooling=Pooling.LAST, normalize=True, dimensions=2)


@pytest.mark.parametrize("field", ["input", "text"])
def test_the_servers_options(field: str) -> None:
    """Those of the request come first, each by itself; null is nothing said."""
    model = Model("tiny", 4, 10)

    def parsed(value: object) -> EmbedOptions | None:
        return options_of(read({"return_embedding": value}, EmbedFields), model.hidden_size)

    assert parsed(engine_request({field: "a"}, model)[1]) == EmbedOptions()
    assert parsed(engine_request({field: "a"}, model._replace(defaults=LAST))[1]) == LAST


def test_the_request_comes_first() -> None:
    """One by one."""
    model = Model("tiny", 4, 10, LAST)
    said = {"pooling": "max", "normalize": False, "dimensions": None}
    assert engine_request({"input": "a", **said}, model)[1] == {"pooling": "max", "dimensions": 2}


@pytest.mark.parametrize("prompts", [[1, 2], [[1, 2]], [1.0], [[]]])
def test_text_only(prompts: list[Any]) -> None:
    """No token ids in either form; lists of texts are taken."""
    model = Model("tiny", 4, 10, text_only=True)
    with pytest.raises(BadRequest, match="--embeddings-text-only"):
        engine_request({"input": prompts}, model)
    assert engine_request({"input": ["a"]}, model)[0] == {"text": ["a"]}


def tokens(texts: list[str]) -> list[list[int]]:
    """One id for each character."""
    return [[ord(character) - ord("a") for character in text] for text in texts]


def rendered(messages: list[dict[str, str]], generation_prompt: bool) -> list[int]:
    """The contents' ids, and a 9 where the answer begins."""
    if messages[0]["role"] != "user":
        raise ValueError("the first message must be the user's")
    return [*tokens(["".join(message["content"] for message in messages)])[0], *([9] if generation_prompt else [])]


MODEL = Model("tiny", 4, 10, prompt=5, tokenizer=Tokenizer(tokens, rendered))
CHAT = [{"role": "user", "content": "abc"}]


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        ({"input": ["abcdef", "b"], "truncate_prompt_tokens": 2}, [[4, 5], [1]]),
        ({"input": [[1, 2, 3], [4]], "truncate_prompt_tokens": 2}, [[2, 3], [4]]),
        ({"input": [[1, 2]], "truncate_prompt_tokens": 10**9}, [[1, 2]]),
        ({"text": "abcdefgh", "truncate_prompt_tokens": -1}, [[3, 4, 5, 6, 7]]),
        ({"input": None, "messages": CHAT}, [[0, 1, 2]]),
        ({"input": None, "messages": CHAT, "add_generation_prompt": True, "truncate_prompt_tokens": 2}, [[2, 9]]),
    ],
)
def test_token_ids(body: dict[str, Any], ids: list[list[int]]) -> None:
    """The last tokens of each prompt; a chat's, as its template writes them."""
    assert engine_request(body, MODEL)[0] == {"input_ids": ids}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"input": "a", "truncate_prompt_tokens": 0},
            "truncate_prompt_tokens: got 0; allowed: -1, or an integer, 1 or more",
        ),
        ({"input": "a", "add_generation_prompt": "yes"}, "add_generation_prompt: got 'yes'"),
        ({"input": "a", "truncate_prompt_tokens": True}, "truncate_prompt_tokens: got True"),
        ({"input": "a", "messages": CHAT}, "input: got 'a'; allowed: nothing beside messages"),
        ({"input": None, "messages": []}, "messages: got []"),
        ({"input": None, "messages": [{"role": "user"}]}, "messages[0].content: got nothing"),
        ({"input": None, "messages": [{"role": "user", "content": [1]}]}, "messages[0].content: got [1]"),
        ({"input": None, "messages": CHAT, "add_generation_prompt": []}, "add_generation_prompt: got []"),
        ({"input": None, "messages": [{"role": "assistant", "content": "a"}]}, "the first message must be the user's"),
        ({"input": "a", "on_error": "skip"}, """on_error: got 'skip'; allowed: "null\""""),
        ({"input": None, "messages": CHAT, "on_error": "null"}, "on_error: got 'null'; allowed: nothing beside"),
    ],
)
def test_bad_inputs(body: dict[str, Any], message: str) -> None:
    """Each names its field, and what is allowed."""
    with pytest.raises(BadRequest) as refused:
        engine_request(body, MODEL)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("field", "prompts", "params"),
    [
        ("input", ["a", "", 5, "too long", "b"], [None, "input[1]", "input[2]", "input[3]", None]),
        ("input", [[1], [10], "a", [2, 3]], [None, "input[1][0]", "input[2]", None]),
        ("text", ["a", "", "too long"], [None, "text[1]", "text[2]"]),
        ("text", "too long", ["text[0]"]),
    ],
)
def test_others_are_answered(field: str, prompts: Any, params: list[str | None]) -> None:
    """A prompt that fails is null, with its error, at its place; each of the others has its vector."""

    async def embed(prompts: dict[str, Any], options: dict[str, Any]) -> list[dict[str, Any]]:
        (prompt,) = prompts.get("text") or prompts["input_ids"]
        if prompt == "too long":
            raise EngineRefused("too many tokens", f"{field}[0]")
        return [{"embedding": [float(len(prompt))], "embedding_options": options, "prompt_tokens": 1}]

    route = routes.openai if field == "input" else routes.encode
    answer: Any = asyncio.run(route(Request({field: prompts, "on_error": "null"}), embed, MODEL))
    if field == "input":
        assert answer["usage"]["prompt_tokens"] == params.count(None)
        assert [entry["index"] for entry in answer["data"]] == [*range(len(prompts))]
        found = [(entry["embedding"], entry.get("error")) for entry in answer["data"]]
    else:
        vectors = answer["embeddings"] if isinstance(prompts, list) else [answer["embedding"]]
        found = list(zip(vectors, answer["errors"], strict=True))
    for prompt, param, (vector, error) in zip(
        prompts if isinstance(prompts, list) else [prompts], params, found, strict=True
    ):
        assert vector == (None if param else [len(prompt)])
        assert (error and error["param"]) == param
        assert param is None or error["message"].startswith(param)


@pytest.mark.parametrize(
    ("texts", "level", "line"),
    [
        (["a"], None, None),
        (["a", "", "secret", 5], "INFO", "3 of 4: text[1]: bad_request: field 'text[1]'"),
        (["secret", "a"], "INFO", "1 of 2: text[0]: engine_refused: field 'text[0]'"),
        (["", "broken"], "ERROR", "2 of 2: text[1]: row_store_failed: row_store_failed: no"),
    ],
)
def test_one_line_for_all_that_failed(
    texts: Any, level: str | None, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first reason, the server's own before others; nothing of what the client sent."""

    async def embed(prompts: dict[str, Any], options: dict[str, Any]) -> list[dict[str, Any]]:
        (prompt,) = prompts["text"]
        if prompt == "secret":
            raise EngineRefused(f"{prompt} is too long", "text[0]")
        if prompt == "broken":
            raise RequestFailed(ROW_STORE_FAILED, "no")
        return [{"embedding": [0.0], "embedding_options": options, "prompt_tokens": 1}]

    lines: list[tuple[str, str]] = []

    def log(of: int, text: str, *values: object) -> None:
        lines.append((logging.getLevelName(of), text % values))

    monkeypatch.setattr(error_body.logger, "log", log)
    asyncio.run(routes.encode(Request({"text": texts, "on_error": "null"}), embed, MODEL))
    said = [(of, text.replace(" items of text failed, such as", ":")) for of, text in lines]
    assert said == ([(level, f"tessera: {line}")] if line else [])
