"""Requests that end a stock server, or that it answers with a 500: each is a 400, and neighbours get their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest

from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY

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
        ("/v1/responses", {"model": str(TINY), "input": "a", "max_output_tokens": -1} | PLAIN),
        ("/v1/responses", {"model": str(TINY), "input": "a", "top_k": 2**40} | PLAIN),
        ("/v1/responses", [1]),
        ("/v1/responses", {"model": str(TINY), "input": []} | PLAIN),
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
        ("/api/chat", {"model": "tiny", "messages": []} | PLAIN),
        ("/v1/messages/count_tokens", {"model": "tiny", "messages": []}),
        ("/v1/score", {"model": "tiny", "query": "a", "items": ["b"], "label_token_ids": []}),
        ("/parse_function_call", {"text": "a", "tools": [], "tool_call_parser": "no such"}),
        ("/separate_reasoning", {"text": "a", "reasoning_parser": "no such"}),
    ],
)
def test_other_routes(client: httpx.Client, path: str, body: Any) -> None:
    """400 on each, and no path of the server's files in it."""
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert "site-packages" not in answer.text
    assert ".py" not in answer.text


def test_a_refused_stream_leaves_its_connection_alone(client: httpx.Client) -> None:
    """SGLang's background task failed 2 s later and closed it, with a neighbour's request of the same proxy on it."""
    client.post("/generate", json=generate()).raise_for_status()  # the connection is open
    for body in (
        {"sampling_params": GREEDY},
        generate(return_flat_raw_top_logprobs_b64=True),
        generate(input_ids=[PROMPT, PROMPT], return_logprob=[True, False], params={"n": 2}),
        generate(input_ids=[PROMPT, PROMPT]) | {"sampling_params": [GREEDY, GREEDY | {"n": 2}]},
    ):
        assert client.post("/generate", json=body | {"stream": True}).status_code == 400, body
    long = generate(params={"max_new_tokens": 800, "ignore_eos": True})  # longer than 2 s
    assert client.post("/generate", json=long).raise_for_status().json()["meta_info"]["completion_tokens"] == 800


def test_a_pattern_without_end_ends_its_request_alone(injecting: Server) -> None:
    """``(.+)+x`` tries each of the 2^n ways to cut a text in pieces; Python's matching cannot be told to stop."""
    endless = generate(params={"max_new_tokens": 64, "ignore_eos": True, "stop_regex": r"(.+)+\x00"})
    good = generate(params={"max_new_tokens": 64, "ignore_eos": True, "stop_regex": [r"no such \w+", "(a|b)*c{9}"]})

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=injecting.url, timeout=60) as several:
            return await asyncio.gather(*(several.post("/generate", json=body) for body in (endless, good, good)))

    refused, *answers = asyncio.run(ask())
    assert refused.status_code == 400
    assert "stop_regex" in refused.text
    assert [one.raise_for_status().json()["meta_info"]["completion_tokens"] for one in answers] == [64, 64]


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_ollamas_streams_are_refused_with_a_status(client: httpx.Client, path: str) -> None:
    """SGLang sent 200, then cut the stream: its default of 2,048 tokens does not fit each context."""
    prompt: dict[str, Any] = {"prompt": "a"} if path == "/api/generate" else {"messages": CHAT["messages"]}
    body = {"model": "tiny", "options": {"num_predict": 1_000_000}} | prompt | PLAIN
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "engine_refused")
    lines = client.post(path, json=body | {"options": {"num_predict": 3}}).raise_for_status().text.splitlines()
    assert [json.loads(line)["done"] for line in lines][-1] is True


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/classify", {"text": "a"}),
        ("/v1/classify", {"model": "tiny", "input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
def test_routes_of_other_models_say_what_there_is(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """SGLang advises ``--is-embedding``, which our options refuse."""
    error = client.post(path, json=body).json()["error"]
    assert (error["param"], error["code"]) == (path, "bad_request")
    assert "/v1/embeddings" in error["message"]
    assert "--is-embedding" not in error["message"]


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
    empty: tuple[dict[str, Any], ...] = ({"audio_data": []}, {"video_data": []}, {"modalities": ["image"]})
    for nothing in empty:
        samples = client.post("/generate", json=generate(params={"n": 2}) | nothing).raise_for_status().json()
        assert [answer["output_ids"] for answer in samples] == [expected] * 2


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
