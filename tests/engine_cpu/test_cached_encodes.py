"""An encode of a prompt that is cached whole computes nothing, and returns what computing it would."""

from __future__ import annotations

import base64
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from tessera.capabilities.fingerprints.calibration.prover import ask, check
from tessera.launching.server import Server
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import fresh_prompt
from tessera_testing.marks import is_installed
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.waiting import wait_until

prompt_of = partial(fresh_prompt, "cached encodes")

FLOAT32_ERROR = 1e-5
LENGTHS = itertools.count(1001)
"""Of prompts whose prefill is looked for in the log."""


def post(server: Server, prompt: Any, tokens: int = 0, **fields: Any) -> Any:
    """POST /generate, greedy; nothing is generated unless it says so."""
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}}
    return httpx.post(f"{server.url}/generate", json=body | fields, timeout=120).raise_for_status().json()


def prefills(server: Server) -> int:
    """How many prefills the server has run, with one of ours: it may log one after its answer, but in order."""
    length = next(LENGTHS)
    post(server, prompt_of(length, seed=length))
    wait_until(lambda: f"#new-token: {length}," in server.log)
    return server.log.count("Prefill batch")


def rows_of(answer: Any) -> Any:
    """Its raw states, ``[n, H]``."""
    states = answer["meta_info"]["hidden_states"]
    return np.frombuffer(base64.b64decode(states["data"]), "<f4").reshape(states["shape"])


def test_nothing_is_computed(server: Server, hf: HuggingFace) -> None:
    """Every pooling, raw rows and single positions, one after the other, behind one prefill."""
    prompt = prompt_of(90, seed=1)
    expected = hf.states(prompt)
    assert post(server, prompt, return_embedding=True)["meta_info"]["cached_tokens"] == 0
    before = prefills(server)
    for pooling in ("mean", "last", "max", "first"):
        answer = post(server, prompt, return_embedding={"pooling": pooling, "over": "all"})
        assert answer["output_ids"] == []
        assert answer["text"] == ""
        meta = answer["meta_info"]
        assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (90, 90, 0)
        assert meta["finish_reason"] == {"type": "length", "length": 0}
        pooled = hf.pooled(prompt, [], pooling, "all")
        assert relative_error(meta["embedding"], pooled) <= FLOAT32_ERROR
    raw = post(server, prompt, return_hidden_states=True, hidden_states_format="base64")
    assert relative_error(rows_of(raw), expected) <= FLOAT32_ERROR
    some = post(server, prompt, return_hidden_states={"positions": [89, 3]}, hidden_states_format="base64")
    assert relative_error(rows_of(some), expected[[89, 3]]) <= FLOAT32_ERROR
    assert prefills(server) == before + 1


def test_the_routes_of_encodes(server: Server, hf: HuggingFace) -> None:
    """/encode and /v1/embeddings, each text twice in a batch, again and again."""
    prompts = [prompt_of(length, seed=2) for length in (1, 17, 64)]
    bodies = [{"input": prompts + prompts, "model": "tiny"}, {"input": prompts[1], "model": "tiny"}]
    httpx.post(f"{server.url}/v1/embeddings", json=bodies[0], timeout=120).raise_for_status()
    found = [httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=120).json()["data"] for body in bodies]
    for prompt, item in zip([*prompts, *prompts, prompts[1]], found[0] + found[1], strict=True):
        assert relative_error(item["embedding"], hf.states(prompt).mean(0)) <= FLOAT32_ERROR
    texts = {"text": ["def cached(self):", "return None"]}
    first, second = (httpx.post(f"{server.url}/encode", json=texts, timeout=120).json() for _ in range(2))
    assert first == second


def test_rows_that_others_computed(server: Server, hf: HuggingFace) -> None:
    """The beginning of a longer prompt, what another request generated, and a prompt whose prefill is still running."""
    longer = prompt_of(120, seed=3)
    generated = post(server, longer, tokens=20)["output_ids"]
    for prompt in (longer[:50], longer, [*longer, *generated[:19]]):
        answer = post(server, prompt, return_embedding=True)
        assert answer["meta_info"]["cached_tokens"] == len(prompt)
        assert relative_error(answer["meta_info"]["embedding"], hf.states(prompt).mean(0)) <= FLOAT32_ERROR
    cold = prompt_of(900, seed=4)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: post(server, cold, return_embedding=True), range(12)))
    expected = hf.states(cold).mean(0)
    assert max(relative_error(one["meta_info"]["embedding"], expected) for one in answers) <= FLOAT32_ERROR


@pytest.mark.skipif(is_installed("<0.5.18"), reason="/generate has no cache_salt")
def test_a_salt_divides_the_rows(server: Server, hf: HuggingFace) -> None:
    """Without one, with a and with b nobody is answered from another's rows; with b again, from its own."""
    prompt = prompt_of(40, seed=10)
    for salt, cached in ((None, 0), ("a", 0), ("b", 0), ("b", 40)):
        meta = post(server, prompt, return_embedding=True, cache_salt=salt)["meta_info"]
        assert meta["cached_tokens"] == cached
        assert relative_error(meta["embedding"], hf.states(prompt).mean(0)) <= FLOAT32_ERROR


def test_what_asks_for_more_is_computed(server: Server) -> None:
    """Log-probabilities, tokens, or nothing of ours: SGLang computes the last token, as ever."""
    prompt = prompt_of(40, seed=5)
    post(server, prompt, return_embedding=True)
    for tokens, fields in (
        (0, {"return_logprob": True, "logprob_start_len": 0, "return_embedding": True}),
        (1, {"return_embedding": True}),
        (0, {}),
    ):
        assert post(server, prompt, tokens, **fields)["meta_info"]["cached_tokens"] < 40


def test_a_flushed_cache_has_nothing(server: Server, hf: HuggingFace) -> None:
    """Slots and rows of requests are free again after each answer, or the flush and the idle check would say so."""
    prompt = prompt_of(60, seed=6)
    for _ in range(40):
        post(server, [prompt, prompt[:30]], return_embedding=True)
    flush_cache(server)
    answer = post(server, prompt, return_embedding=True)
    assert answer["meta_info"]["cached_tokens"] == 0
    assert relative_error(answer["meta_info"]["embedding"], hf.states(prompt).mean(0)) <= FLOAT32_ERROR


def test_streams_and_copies(server: Server, hf: HuggingFace) -> None:
    """As a stream, and n times."""
    prompt = prompt_of(30, seed=7)
    post(server, prompt, return_embedding=True)
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}, "return_embedding": True, "stream": True}
    lines = httpx.post(f"{server.url}/generate", json=body, timeout=60).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    last = json.loads(lines[-3].removeprefix("data: "))["meta_info"]
    assert last["cached_tokens"] == 30
    expected = hf.states(prompt).mean(0)
    assert relative_error(last["embedding"], expected) <= FLOAT32_ERROR
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0, "n": 3}, "return_embedding": True}
    answers = httpx.post(f"{server.url}/generate", json=body, timeout=60).raise_for_status().json()
    assert len(answers) == 3
    assert max(relative_error(one["meta_info"]["embedding"], expected) for one in answers) <= FLOAT32_ERROR


def test_fingerprints_of_cached_rows(server: Server) -> None:
    """Claims on the server that made them: every row is in the cache, the verdict is that of a prefill."""
    responses = ask(server.url, 4, 40)
    flush_cache(server)
    cold = check(server.url, responses)
    assert check(server.url, responses) == cold


@pytest.mark.parametrize("other", [False, True])
def test_injected_vectors(injecting: Server, *, other: bool) -> None:
    """The same vectors again need nothing computed; others do."""
    prompt = prompt_of(40, seed=8 + other)
    answers = []
    for seed in (1, 2 if other else 1):
        vectors = (np.random.default_rng(seed).standard_normal((2, 256)) / 16).astype("<f4")
        embeds = base64.b64encode(vectors.tobytes()).decode()
        overrides = {"positions": [5, 20], "embeds": embeds, "shape": [2, 256], "dtype": "float32"}
        answers.append(post(injecting, prompt, return_embedding=True, input_embed_overrides=overrides)["meta_info"])
    assert answers[1]["cached_tokens"] == (5 if other else 40)
    assert (answers[0]["embedding"] == answers[1]["embedding"]) is not other
