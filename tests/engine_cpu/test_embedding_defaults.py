"""Defaults of the server for embeddings, where a request does not say: `/v1/embeddings`, `/encode`, `/server_info`."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, relative_error

IDS = [321, 538, 266, 810]


def embedding(server: Server, route: str, body: dict[str, Any]) -> Any:
    """Of one prompt."""
    answer = httpx.post(server.url + route, json=body, timeout=120).raise_for_status().json()
    return answer["embedding"] if route == "/encode" else answer["data"][0]["embedding"]


@pytest.mark.full
def test_options_where_a_request_does_not_say(strained: Server, hf: HuggingFace) -> None:
    """The last row, 8 values of it, length 1; a request that says something else gets that, on either route."""
    text = "import os\n"
    ids = hf.tokenizer(text)["input_ids"]
    states = hf.states(ids)
    expected = states[-1, :8] / np.linalg.norm(states[-1, :8])
    for route, field in (("/v1/embeddings", "input"), ("/encode", "text")):
        assert relative_error(embedding(strained, route, {field: text}), expected) <= 1e-5
    other = {"input": text, "pooling": "mean", "normalize": False, "dimensions": 256}
    assert relative_error(embedding(strained, "/v1/embeddings", other), states.mean(0)) <= 1e-5


def test_server_info_has_the_servers_own(strained: Server) -> None:
    """A client that cannot send options can look."""
    assert server_defaults(strained) == {"dimensions": 8, "pooling": "last", "normalize": True, "text_only": True}


def test_server_info_has_those_of_the_api(server: Server) -> None:
    """Where nothing sets others."""
    assert server_defaults(server) == {"dimensions": None, "pooling": "mean", "normalize": False, "text_only": False}


def test_a_server_without_rows_has_none(bare: Server) -> None:
    """And says so."""
    assert server_defaults(bare) is None


def server_defaults(server: Server) -> Any:
    """What ``/server_info`` says of embeddings."""
    return httpx.get(f"{server.url}/server_info", timeout=60).json()["tessera"].get("embeddings")


def test_text_only(strained: Server) -> None:
    """Token ids are those of the client's tokenizer, and nobody can tell whose that is."""
    for prompts in (IDS, [IDS, IDS]):
        answer = httpx.post(f"{strained.url}/v1/embeddings", json={"input": prompts}, timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert "--embeddings-text-only" in answer.json()["error"]["message"]
    assert len(embedding(strained, "/v1/embeddings", {"input": ["a", "b"]})) == 8
    generated = httpx.post(f"{strained.url}/generate", json={"input_ids": IDS, "return_embedding": True}, timeout=60)
    assert len(generated.raise_for_status().json()["meta_info"]["embedding"]) == 256
