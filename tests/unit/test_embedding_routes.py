"""``/v1/embeddings`` and ``/encode`` without an engine: what they ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from tessera.capabilities.embed import routes
from tessera.capabilities.embed.options import EmbedFields, EmbedOptions, Pooling, chosen
from tessera.capabilities.embed.routes import Model
from tessera.errors import BadRequest
from tessera.fields import read


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


def asked(body: dict[str, Any], model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
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
        return chosen(read({"return_embedding": value}, EmbedFields), model.hidden_size)

    assert parsed(asked({field: "a"}, model)[1]) == EmbedOptions()
    assert parsed(asked({field: "a"}, model._replace(defaults=LAST))[1]) == LAST


def test_the_request_comes_first() -> None:
    """One by one."""
    model = Model("tiny", 4, 10, LAST)
    said = {"pooling": "max", "normalize": False, "dimensions": None}
    assert asked({"input": "a", **said}, model)[1] == {
        "pooling": "max",
        "normalize": False,
        "dimensions": 2,
        "encoding_format": "float",
    }


@pytest.mark.parametrize("prompts", [[1, 2], [[1, 2]], [1.0], [[]]])
def test_text_only(prompts: list[Any]) -> None:
    """No token ids in either form; lists of texts are taken."""
    model = Model("tiny", 4, 10, text_only=True)
    with pytest.raises(BadRequest, match="--embeddings-text-only"):
        asked({"input": prompts}, model)
    assert asked({"input": ["a"]}, model)[0] == {"text": ["a"]}
