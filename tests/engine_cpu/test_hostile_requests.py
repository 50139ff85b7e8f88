"""Requests that end a stock server, or that it answers with a 500: each is a 400, and neighbours get their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest

from tessera.testing.reference import HuggingFace
from tessera.testing.server import Server

GREEDY: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0}
PROMPT = [5, 6, 7]
PLAIN = {"return_toploc_fingerprints": False}  # what a server that proves every response wants to hear
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "def"}], "max_tokens": 2}


@pytest.fixture
def client(injecting: Server) -> httpx.Client:
    """A client of a server with rows and injection."""
    return httpx.Client(base_url=injecting.url, timeout=120)


def generate(**fields: Any) -> dict[str, Any]:
    """A body for ``/generate``; ``params`` are further sampling parameters."""
    return {"input_ids": PROMPT, "sampling_params": GREEDY | fields.pop("params", {}), **fields}


ENDING = (
    ("sampling_params.max_new_tokens", generate(params={"max_new_tokens": 2.5})),
    ("sampling_params.max_new_tokens", generate(params={"max_new_tokens": 1e3})),
    ("sampling_params.stop_token_ids[0]", generate(params={"min_new_tokens": 1, "stop_token_ids": [-5]})),
    ("sampling_params.logit_bias.5", generate(params={"logit_bias": {"5": 1e39}})),
    ("sampling_params.stop_token_ids", generate(params={"min_new_tokens": 1, "stop_token_ids": list(range(1024))})),
    ("sampling_params.repetition_penalty", generate(params={"temperature": 1, "repetition_penalty": 1e-39})),
    ("sampling_params.top_k", generate(params={"temperature": 1, "top_k": 2**31})),
    ("sampling_params.custom_params.a", generate(params={"custom_params": {"a": {"b": {"c": 1}}}})),
    ("sampling_params.json_schema", generate(params={"json_schema": {"type": "object"}})),
    ("sampling_params.regex", generate(params={"regex": "a+"})),  # SGLang's grammars need a GPU
    ("sampling_params.is_normalized", generate(params={"is_normalized": True})),
    ("top_logprobs_num", generate(return_logprob=True, top_logprobs_num=5000)),
    ("return_logprob", generate(return_logprob=[True])),
    ("lora_id", generate(lora_id="a")),
    ("multi_item_delimiter_indices", generate(multi_item_delimiter_indices=[1])),
    ("session_params.offset", generate(session_params={"id": "s", "offset": "1"})),
    ("input_ids[1]", generate(input_ids=[[1, 2], []])),
    ("input_ids[1]", generate(input_ids=[[1, 2], []], params={"n": 2})),
    ("input_ids[0]", generate(input_ids=[[], []], return_embedding=True)),
    ("input_ids[1]", generate(input_ids=[[1, 2], []], return_toploc_fingerprints=True)),
    ("input_ids", generate(input_ids=[])),
    ("text[1]", {"text": ["a", ""], "sampling_params": GREEDY}),
)
REFUSED = (
    ("input_ids", generate(input_ids=[[5, 6], [7, 8]], text="a")),
    ("input_ids", generate(text=["a", "b"])),
    ("rid", generate(rid=["a"])),
    ("sampling_params.max_new_tokens", generate(params={"max_new_tokens": "0"})),
    ("sampling_params.n", generate(params={"n": "2"})),
    ("sampling_params.n", generate(params={"n": 2.0})),
    ("sampling_params.n", generate(params={"n": None})),
    ("sampling_params.top_p", generate(params={"top_p": "0.5"})),
    ("sampling_params.stop", generate(params={"stop": 5})),
    ("sampling_params.no_such", generate(params={"no_such": 5})),
    ("sampling_params", generate() | {"sampling_params": []}),
    ("sampling_params", generate() | {"sampling_params": [{}, {}]}),
)


@pytest.mark.parametrize("stream", [False, True])
def test_refused_by_name(client: httpx.Client, stream: bool) -> None:
    """With field, value and what is allowed, and before a stream begins."""
    for field, body in (*ENDING, *REFUSED):
        answer = client.post("/generate", json=body | {"stream": stream})
        assert answer.status_code == 400, (body, answer.text)
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (field, "bad_request"), body
        assert error["message"].startswith(f"{field}: got "), body
    assert client.post("/generate", json=generate()).raise_for_status().json()["meta_info"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": [[1, 2], []]}),
        ("/v1/completions", {"model": "tiny", "prompt": [[1, 2], []], "n": 2}),
        ("/v1/completions", {"model": "tiny", "prompt": [[1, 2], []], "return_toploc_fingerprints": True}),
        ("/v1/completions", {"model": "tiny", "prompt": ["a", ""]}),
        ("/v1/completions", {"model": "tiny", "prompt": [5, 1024]}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "logit_bias": {"5": 1e39}}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "min_tokens": 1, "stop_token_ids": [-5]}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "logprobs": 5000}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "rid": ["a"]}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "extra_key": ["k"]}),
        ("/v1/chat/completions", CHAT | {"cache_salt": ["a"]}),
        ("/v1/chat/completions", CHAT | {"input_ids": []}),
        ("/v1/chat/completions", CHAT | {"input_ids": [-5]}),
        ("/v1/chat/completions", CHAT | {"logit_bias": {"5": 1e39}}),
        ("/v1/chat/completions", CHAT | {"min_tokens": 1, "stop_token_ids": [1024]}),
        ("/v1/chat/completions", CHAT | {"n": 0}),
        ("/v1/chat/completions", CHAT | {"top_k": 2**40}),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 5000}),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
        ("/v1/chat/completions", CHAT | {"response_format": -5}),
        ("/v1/chat/completions", CHAT | {"max_tokens": "x"}),
        ("/v1/chat/completions", [CHAT]),
        ("/v1/chat/completions", "text"),
        ("/invocations", CHAT | {"logit_bias": {"5": 1e39}}),
        ("/invocations", [CHAT]),
        ("/vertex_generate", {"instances": [{"text": "a"}], "parameters": {"return_logprob": "x"}}),
        ("/vertex_generate", {"instances": [{"text": "a"}, {}], "parameters": {"sampling_params": GREEDY}}),
        ("/vertex_generate", {"instances": [{"input_ids": [5, "6"]}], "parameters": {"sampling_params": GREEDY}}),
        ("/vertex_generate", {"instances": [{"text": "a"}], "parameters": {"no_such": 1}}),
        ("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": -1} | PLAIN),
        ("/v1/responses", {"model": "tiny", "input": "a", "top_k": 2**40} | PLAIN),
        ("/v1/responses", [1]),
        ("/v1/messages", {"model": "tiny", "messages": CHAT["messages"], "max_tokens": 2, "top_k": 2**40} | PLAIN),
        ("/api/generate", {"model": "tiny", "prompt": "a", "stream": False, "options": {"num_predict": "x"}} | PLAIN),
        (
            "/api/chat",
            {"model": "tiny", "messages": CHAT["messages"], "stream": False, "options": {"top_p": "x"}} | PLAIN,
        ),
        ("/v1/embeddings", {"model": "tiny", "input": [[1, 2], []]}),
        ("/encode", {"text": ["a", ""]}),
        ("/v1/toploc/verify", {"claims": [{"input_ids": [], "output_ids": [5], "fingerprints": ["/9k="]}]}),
        ("/detokenize", {"model": "tiny", "tokens": [5, -1]}),
        ("/classify", {"text": "a", "rid": ["a", "b"]}),
    ],
)
def test_other_routes(client: httpx.Client, path: str, body: Any) -> None:
    """400 on each, and no path of the server's files in it."""
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert "site-packages" not in answer.text
    assert ".py" not in answer.text


def test_what_is_right_is_answered(client: httpx.Client) -> None:
    """The routes that are checked go on working."""
    vertex = {"instances": [{"input_ids": PROMPT}, {"input_ids": [9]}], "parameters": {"sampling_params": GREEDY}}
    expected = client.post("/generate", json=generate()).raise_for_status().json()["output_ids"]
    assert client.post("/vertex_generate", json=vertex).raise_for_status().json()[0]["output_ids"] == expected
    detokenized = client.post("/detokenize", json={"model": "tiny", "tokens": [5, 6]}).raise_for_status().json()
    assert detokenized["text"]
    ollama = {"model": "tiny", "messages": CHAT["messages"], "stream": False, "options": {"num_predict": 2}}
    assert client.post("/api/chat", json=ollama | PLAIN).raise_for_status().json()["done"]
    for fields in ({"rid": ["b1", "b2"]}, {"return_logprob": [True, False]}, {"sampling_params": [GREEDY, GREEDY]}):
        answers = client.post("/generate", json=generate(input_ids=[PROMPT, PROMPT]) | fields).raise_for_status().json()
        assert [answer["output_ids"] for answer in answers] == [expected] * 2


def test_token_ids_logprob_beside_requests_without(client: httpx.Client, injecting: Server, hf: HuggingFace) -> None:
    """SGLang #34719: a mixed batch ended the scheduler. Its log-probabilities are those of Hugging Face."""
    wanted = [3, 500, 1023]
    with_ids = generate(
        return_logprob=True, token_ids_logprob=wanted, params={"max_new_tokens": 24, "ignore_eos": True}
    )
    without = generate(params={"max_new_tokens": 24, "ignore_eos": True}, return_logprob=True)

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=injecting.url, timeout=120) as several:
            bodies = [with_ids, without, generate(), with_ids | {"stream": False}, without]
            answers = await asyncio.gather(*(several.post("/generate", json=body) for body in bodies * 4))
        return [answer.raise_for_status().json() for answer in answers]

    answers = asyncio.run(ask())
    batch = client.post("/generate", json=with_ids | {"input_ids": [PROMPT] * 2, "token_ids_logprob": [wanted, []]})
    answers += batch.raise_for_status().json()[:1]
    found = [answer["meta_info"]["output_token_ids_logprobs"] for answer in answers[::5]]
    logits = hf.logits(hf.states(PROMPT + answers[0]["output_ids"][:-1])[len(PROMPT) - 1 :])
    expected = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))[:, wanted]
    for steps in found:
        assert len(steps) == 24
        for step, own in zip(steps, expected.tolist(), strict=True):
            assert [token for _, token, *_ in step] == wanted
            assert [value for value, *_ in step] == pytest.approx(own, abs=1e-4)
