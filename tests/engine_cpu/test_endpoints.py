"""/v1/embeddings and /encode on the server that generates: the clients that people have, unchanged."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import load

from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, Vector, relative_error
from tessera_testing.tiny import TINY

FLOAT32_ERROR = 1e-5
TEXTS = ["def add(a, b):\n    return a + b\n", "import os", "class Stack:\n    pass\n"]


def expected(hf: HuggingFace, text: str) -> Vector:
    """The mean over the text's tokens."""
    return hf.pooled(hf.tokenizer(text)["input_ids"], [], "mean", "prompt")


def sdk(server: Server) -> openai.OpenAI:
    """OpenAI's own client."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_openai_sdk(server: Server, hf: HuggingFace) -> None:
    """One text and a list; the SDK asks for base64 by itself, and for numbers if told."""
    client = sdk(server)
    answers = [
        client.embeddings.create(model="tiny", input=TEXTS),
        client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float"),
        client.embeddings.create(model="tiny", input=TEXTS, encoding_format="base64"),
    ]
    for answer in answers:
        assert [item.index for item in answer.data] == [0, 1, 2]
        assert answer.usage.prompt_tokens == sum(len(hf.tokenizer(text)["input_ids"]) for text in TEXTS)
        for text, item in zip(TEXTS, answer.data, strict=True):
            vector: Any = item.embedding
            found = np.frombuffer(base64.b64decode(vector), "<f4") if isinstance(vector, str) else vector
            assert relative_error(found, expected(hf, text)) <= FLOAT32_ERROR
    single = client.embeddings.create(model="tiny", input=TEXTS[0], user="somebody").data
    assert relative_error(single[0].embedding, expected(hf, TEXTS[0])) <= FLOAT32_ERROR


def test_openai_sdk_token_ids_and_options(server: Server, hf: HuggingFace) -> None:
    """Token ids, lists of them; ``dimensions``, and what goes through ``extra_body``."""
    client = sdk(server)
    ids = [hf.tokenizer(text)["input_ids"] for text in TEXTS]
    assert len(client.embeddings.create(model="tiny", input=ids[0]).data) == 1
    options = {"pooling": "last", "normalize": True}
    answer = client.embeddings.create(model="tiny", input=ids, dimensions=32, extra_body=options)
    for item_ids, item in zip(ids, answer.data, strict=True):
        shortened = hf.pooled(item_ids, [], "last", "prompt")[:32]
        assert relative_error(item.embedding, shortened / np.linalg.norm(shortened)) <= FLOAT32_ERROR


def test_chats_and_last_tokens(server: Server, hf: HuggingFace) -> None:
    """A chat is what the model's template makes of it; of longer prompts the last tokens count."""
    messages: Any = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]
    ids = hf.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    for body, tokens in (
        ({"messages": messages}, ids),
        ({"messages": messages, "truncate_prompt_tokens": 4}, ids[-4:]),
        ({"input": TEXTS[0], "truncate_prompt_tokens": 3}, hf.tokenizer(TEXTS[0])["input_ids"][-3:]),
        ({"input": [9] * 5000, "truncate_prompt_tokens": -1}, None),
    ):
        answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=120).raise_for_status().json()
        if tokens is not None:
            assert answer["usage"]["prompt_tokens"] == len(tokens)
            found = answer["data"][0]["embedding"]
            assert relative_error(found, hf.pooled(tokens, [], "mean", "prompt")) <= FLOAT32_ERROR


def test_others_are_answered(server: Server, hf: HuggingFace) -> None:
    """A prompt that the engine refuses, and one that we refuse, are null with their errors; the log has a line."""
    body = {"text": [TEXTS[0], "a b " * 4000, "", TEXTS[1]], "on_error": "null"}
    answer = httpx.post(f"{server.url}/encode", json=body, timeout=120).raise_for_status().json()
    assert [error and error["param"] for error in answer["errors"]] == [None, "text[1]", "text[2]", None]
    assert answer["embeddings"][1:3] == [None, None]
    assert "2 of 4 items of text failed, such as text[1]: engine_refused: field 'text[1]'\n" in server.log
    for text, found in ((TEXTS[0], answer["embeddings"][0]), (TEXTS[1], answer["embeddings"][3])):
        assert relative_error(found, expected(hf, text)) <= FLOAT32_ERROR
    body = {"input": [TEXTS[0], "", TEXTS[1]], "on_error": "null"}
    items = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=120).raise_for_status().json()["data"]
    assert (items[1]["embedding"], items[1]["error"]["param"]) == (None, "input[1]")
    for text, item in ((TEXTS[0], items[0]), (TEXTS[1], items[2])):
        assert relative_error(item["embedding"], expected(hf, text)) <= FLOAT32_ERROR


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 7]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [[1], 2]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [5, 1024]}, "input[1]"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "encoding_format": {}}, "encoding_format"),
        ({"input": "a", "encoding_format": ""}, "encoding_format"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": "a", "dimensions": 257}, "dimensions"),
        ({"input": "a", "pooling": "median"}, "pooling"),
        ({"input": "a", "normalize": "yes"}, "normalize"),
        ({"input": "a", "pool": "mean"}, "pool"),
    ],
)
def test_bad_input(server: Server, body: dict[str, Any], field: str) -> None:
    """400 with the field, as OpenAI's clients expect it."""
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body | {"model": "tiny"}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"input": NaN}', b"\xff", b"[" * 100_000, b"7"])
def test_broken_body(server: Server, content: bytes) -> None:
    """What is no JSON object."""
    for path in ("/v1/embeddings", "/encode"):
        answer = httpx.post(f"{server.url}{path}", content=content, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "body"


def test_too_many_inputs(server: Server) -> None:
    """One more than 2,048 is a 413, on both routes; as many are answered."""
    for path, field in (("/v1/embeddings", "input"), ("/encode", "text")):
        answer = httpx.post(f"{server.url}{path}", json={field: ["a"] * 2049}, timeout=60)
        assert answer.status_code == 413
        assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("too_large", field)
    body = {"input": ["a"] * 2048, "dimensions": 1}
    assert len(httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=120).json()["data"]) == 2048


def test_body_over_the_limit(server: Server) -> None:
    """Refused before it is decoded; the server goes on."""
    answer = httpx.post(f"{server.url}/encode", content=b" " * (64 * 2**20 + 1), timeout=120)
    assert answer.status_code == 413
    assert httpx.post(f"{server.url}/encode", json={"text": "a"}, timeout=60).status_code == 200


def test_sglangs_own_refusal(server: Server) -> None:
    """A prompt that is too long: 400 with SGLang's words."""
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": [9] * 5000}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "engine_refused"


def test_encode(server: Server, hf: HuggingFace) -> None:
    """The prover's contract: ``embedding`` for one text, ``embeddings`` for a list, and the width checked."""
    one = httpx.post(f"{server.url}/encode", json={"text": TEXTS[0]}, timeout=60).json()
    assert set(one) == {"embedding"}
    assert relative_error(one["embedding"], expected(hf, TEXTS[0])) <= FLOAT32_ERROR
    many = httpx.post(f"{server.url}/encode", json={"text": TEXTS, "hidden_size": 256}, timeout=60).json()
    for text, vector in zip(TEXTS, many["embeddings"], strict=True):
        assert relative_error(vector, expected(hf, text)) <= FLOAT32_ERROR
    wrong = httpx.post(f"{server.url}/encode", json={"text": "a", "hidden_size": 4096}, timeout=60)
    assert wrong.status_code == 400
    assert "got 4096; allowed: 256" in wrong.json()["error"]["message"]


def test_options_of_encode(server: Server, hf: HuggingFace) -> None:
    """Those of /v1/embeddings, with the same values, in numbers, base64 and binary bodies."""
    options = {"pooling": "last", "dimensions": 8, "normalize": True}
    row = hf.pooled(hf.tokenizer(TEXTS[0])["input_ids"], [], "last", "prompt")[:8]
    wanted = row / np.linalg.norm(row)
    url, body = f"{server.url}/encode", {"text": TEXTS[0], **options}
    found = httpx.post(url, json=body, timeout=60).json()["embedding"]
    text = httpx.post(url, json={**body, "encoding_format": "base64"}, timeout=60).json()["embedding"]
    raw = httpx.post(url, json=body, headers={"Accept": "application/octet-stream"}, timeout=60).content
    for vector in (found, np.frombuffer(base64.b64decode(text), "<f4"), np.frombuffer(raw, "<f4")):
        assert relative_error(vector, wanted) <= FLOAT32_ERROR
    for name, value in (("pooling", "median"), ("dimensions", 257), ("normalize", 1), ("encoding_format", "hex")):
        refused = httpx.post(url, json={"text": "a", name: value}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("path", ["/encode", "/v1/embeddings"])
def test_binary_bodies(server: Server, hf: HuggingFace, path: str) -> None:
    """One body for the whole batch, raw or safetensors; the same numbers as in JSON."""
    body = {"text": TEXTS} if path == "/encode" else {"input": TEXTS, "encoding_format": "base64"}
    raw = httpx.post(f"{server.url}{path}", json=body, headers={"Accept": "application/octet-stream"}, timeout=60)
    assert raw.headers["content-type"] == "application/octet-stream"
    shape = [int(size) for size in raw.headers["x-tessera-shape"].split(",")]
    matrix = np.frombuffer(raw.content, "<f4").reshape(shape)
    named = httpx.post(f"{server.url}{path}", json=body, headers={"Accept": "application/vnd.safetensors"}, timeout=60)
    tensors = load(named.content)
    assert tensors["prompt_tokens"].tolist() == [len(hf.tokenizer(text)["input_ids"]) for text in TEXTS]
    for text, row, other in zip(TEXTS, matrix, tensors["embeddings"], strict=True):
        assert relative_error(row, expected(hf, text)) <= FLOAT32_ERROR
        assert relative_error(other, expected(hf, text)) <= FLOAT32_ERROR


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/octet-stream;q=0, */*", "application/json"),
        ("application/json;q=0.5, application/octet-stream;q=0.9", "application/octet-stream"),
        ("Application/vnd.safetensors, application/octet-stream", "application/vnd.safetensors"),
        ("application/octet-stream;q=high", "application/json"),
    ],
)
def test_accept(server: Server, accept: str, kind: str) -> None:
    """The highest q wins, then the order."""
    answer = httpx.post(f"{server.url}/encode", json={"text": "a"}, headers={"Accept": accept}, timeout=60)
    assert answer.headers["content-type"] == kind


def test_sglangs_benchmark(server: Server, tmp_path: Path) -> None:
    """``sglang.bench_serving`` in its embedding mode, unchanged."""
    out = tmp_path / "bench.jsonl"
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang-embedding"]
    command += ["--base-url", server.url, "--model", str(TINY), "--dataset-name", "random-ids"]
    command += [
        "--num-prompts",
        "6",
        "--random-input-len",
        "20",
        "--random-range-ratio",
        "1",
        "--output-file",
        str(out),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(out.read_text().splitlines()[-1])["completed"] == 6
