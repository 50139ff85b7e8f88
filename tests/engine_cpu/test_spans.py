"""Several spans in one request, on each route, against Hugging Face."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tessera.launching.server import Server
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.reference import HuggingFace, relative_error

SPANS = [[0, 7], [5, 30], [29, 30]]
ERROR = 1e-5


def expected(hf: HuggingFace, ids: list[int], pooling: str) -> list[Any]:
    """The reference's vector of each span."""
    rows = hf.states(ids)
    pool = {"mean": lambda own: own.mean(0), "max": lambda own: own.max(0), "first": lambda own: own[0]}
    pool["last"] = lambda own: own[-1]
    return [pool[pooling](rows[start:end].astype(np.float64)) for start, end in SPANS]


def check(found: list[Any], wanted: list[Any]) -> None:
    """As many, and each is right."""
    for vector, reference in zip(found, wanted, strict=True):
        assert relative_error(vector, reference) <= ERROR


@pytest.mark.parametrize("pooling", ["mean", "max", "first", "last"])
def test_generate(server: Server, hf: HuggingFace, pooling: str) -> None:
    """Cold, and then all rows from the prefix cache without a forward."""
    prompt = fresh_prompt("spans", 30, seed=len(pooling))
    for _ in range(2):
        wanted = {"spans": SPANS, "pooling": pooling}
        meta = generate(server, prompt, 0, return_embedding=wanted)["meta_info"]
        check(meta["embeddings"], expected(hf, prompt, pooling))
        assert meta["embedding_tokens"] == ([1, 1, 1] if pooling in {"first", "last"} else [7, 25, 1])
        assert "embedding" not in meta


def test_output(server: Server, hf: HuggingFace) -> None:
    """A span may reach into what was generated; one token further is a 400, and the next request is right."""
    prompt = fresh_prompt("spans", 20, seed=9)
    answer = generate(server, prompt, 6, {"ignore_eos": True}, return_embedding={"spans": [[18, 25]]})
    rows = hf.states([*prompt, *answer["output_ids"][:-1]])
    check(answer["meta_info"]["embeddings"], [rows[18:25].mean(0)])
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}, "return_embedding": {"spans": [[18, 21]]}}
    refused = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_such_position")
    check(
        generate(server, prompt, 0, return_embedding={"spans": [[0, 20]]})["meta_info"]["embeddings"],
        [hf.states(prompt).mean(0)],
    )


def test_openai(server: Server, hf: HuggingFace) -> None:
    """One entry for each span of each prompt, which says of what it is."""
    prompts = [fresh_prompt("spans", 30, seed=seed) for seed in (11, 12)]
    body = {"model": "tiny", "input": prompts, "spans": SPANS}
    data = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).raise_for_status().json()["data"]
    assert [(entry["index"], entry["prompt"], entry["span"]) for entry in data] == [
        (3 * prompt + i, prompt, span) for prompt in range(2) for i, span in enumerate(SPANS)
    ]
    check([entry["embedding"] for entry in data], [v for prompt in prompts for v in expected(hf, prompt, "mean")])
    headers = {"Accept": "application/octet-stream"}
    raw = httpx.post(f"{server.url}/v1/embeddings", json=body, headers=headers, timeout=60).raise_for_status()
    assert raw.headers["x-tessera-shape"] == "6,256"
    check(list(np.frombuffer(raw.content, "<f4").reshape(6, 256)), [entry["embedding"] for entry in data])


def test_encode(server: Server, hf: HuggingFace) -> None:
    """One text has a vector for each span, several have a list of them each."""
    texts = ["def add(a, b):\n    return a + b\n", "import os\n\nprint(os.getcwd())\n"]
    spans = [[0, 3], [2, 5]]
    wanted = [[hf.states(hf.tokenizer.encode(text))[a:b].mean(0) for a, b in spans] for text in texts]
    one = (
        httpx.post(f"{server.url}/encode", json={"text": texts[0], "spans": spans}, timeout=60)
        .raise_for_status()
        .json()
    )
    assert list(one) == ["embeddings"]
    check(one["embeddings"], wanted[0])
    both = (
        httpx.post(f"{server.url}/encode", json={"text": texts, "spans": spans}, timeout=60).raise_for_status().json()
    )
    for found, reference in zip(both["embeddings"], wanted, strict=True):
        check(found, reference)


@pytest.mark.parametrize("route", ["/encode", "/v1/embeddings"])
def test_bad_spans(server: Server, route: str) -> None:
    """The field is named as the route has it."""
    prompt = {"/encode": {"text": "a"}, "/v1/embeddings": {"input": "a", "model": "tiny"}}[route]
    answer = httpx.post(f"{server.url}{route}", json=prompt | {"spans": [[1, 1]]}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "spans[0]"
    beyond = httpx.post(f"{server.url}{route}", json=prompt | {"spans": [[0, 5000]]}, timeout=60)
    assert beyond.status_code == 400
