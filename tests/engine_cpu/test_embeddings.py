"""``return_embedding`` on /generate against Hugging Face, wherever the rows come from."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from tessera.launching.server import Server
from tessera_testing.canary import OVERS, POOLINGS
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.reference import HuggingFace, cosine, relative_error

prompt_of = partial(fresh_prompt, "embeddings")

FLOAT32_ERROR = 1e-5
BFLOAT16_COSINE = 0.9999


def ask(server: Server, prompt: Any, embedding: Any, max_new_tokens: int = 4, **sampling: Any) -> Any:
    """A greedy answer with an embedding."""
    return generate(server, prompt, max_new_tokens, sampling, return_embedding=embedding)


def check(hf: HuggingFace, prompt: Sequence[int], answer: Any, pooling: str = "mean", over: str = "prompt") -> None:
    """The vector is the reference's, to float32 accuracy."""
    expected = hf.pooled(prompt, answer["output_ids"], pooling, over)
    assert relative_error(answer["meta_info"]["embedding"], expected) <= FLOAT32_ERROR


def test_cold_then_fully_cached(server: Server, hf: HuggingFace) -> None:
    """The second time every token but the last comes from the prefix cache, and its rows with it."""
    prompt = prompt_of(90, seed=1)
    for cached in (0, 89):
        answer = ask(server, prompt, embedding=True)
        assert answer["meta_info"]["cached_tokens"] == cached
        assert answer["meta_info"]["embedding_tokens"] == 90
        check(hf, prompt, answer)


def test_partly_cached(server: Server, hf: HuggingFace) -> None:
    """Half of the rows are old, half are new."""
    prompt = prompt_of(80, seed=2)
    ask(server, prompt[:40], embedding=False)
    answer = ask(server, prompt, embedding=True)
    assert answer["meta_info"]["cached_tokens"] == 40
    check(hf, prompt, answer)


def test_prefix_that_another_request_generated(server: Server, hf: HuggingFace) -> None:
    """Rows that decoding wrote serve a later prompt."""
    prompt = prompt_of(20, seed=3)
    first = ask(server, prompt, embedding=False, max_new_tokens=30)
    longer = prompt + first["output_ids"]
    answer = ask(server, longer, embedding=True)
    assert answer["meta_info"]["cached_tokens"] >= 49
    check(hf, longer, answer)


def test_batch_of_mixed_lengths(server: Server, hf: HuggingFace) -> None:
    """Each prompt of a batch gets its own vector."""
    prompts = [prompt_of(length, seed=100 + length) for length in (1, 2, 7, 64, 65, 200)]
    for prompt, answer in zip(prompts, ask(server, prompts, embedding=True), strict=True):
        assert answer["meta_info"]["embedding_tokens"] == len(prompt)
        check(hf, prompt, answer)


def test_two_samples(server: Server, hf: HuggingFace) -> None:
    """``n=2``: every sample has rows of its own, also of what it generated."""
    prompts = [prompt_of(33, seed=4), prompt_of(5, seed=5)]
    answers = ask(server, prompts, {"over": "all"}, max_new_tokens=6, n=2, temperature=1.5)
    assert len(answers) == 4
    for prompt in prompts:
        own = [answer for answer in answers if answer["meta_info"]["prompt_tokens"] == len(prompt)]
        assert len(own) == 2
        for answer in own:
            check(hf, prompt, answer, over="all")


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_and_span(server: Server, hf: HuggingFace, pooling: str, over: str) -> None:
    """Each pooling over each span."""
    prompt = prompt_of(50, seed=6)
    answer = ask(server, prompt, {"pooling": pooling, "over": over}, max_new_tokens=12)
    rows = {"prompt": 50, "output": 11, "all": 61}[over]
    assert answer["meta_info"]["embedding_tokens"] == (1 if pooling in {"first", "last"} else rows)
    check(hf, prompt, answer, pooling, over)


@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_number_of_new_tokens(server: Server, hf: HuggingFace, tokens: int) -> None:
    """Encode only, one token, many: N + max(M-1, 0) rows."""
    prompt = prompt_of(30, seed=7)
    answer = ask(server, prompt, {"over": "all"}, max_new_tokens=tokens)
    assert len(answer["output_ids"]) == tokens
    assert answer["meta_info"]["embedding_tokens"] == 30 + max(tokens - 1, 0)
    check(hf, prompt, answer, over="all")


def test_nothing_generated_has_no_output_rows(server: Server) -> None:
    """A first token that stops the request leaves no generated row: said, not invented."""
    prompt = prompt_of(30, seed=8)
    first = ask(server, prompt, embedding=False, max_new_tokens=1)["output_ids"][0]
    stop = {"stop_token_ids": [first], "ignore_eos": False}
    meta = ask(server, prompt, {"over": "output"}, max_new_tokens=9, **stop)["meta_info"]
    assert meta["embedding"] is None
    assert meta["embedding_tokens"] == 0


def test_streaming_sends_it_once_at_the_end(server: Server, hf: HuggingFace) -> None:
    """Only the last chunk carries the vector."""
    prompt = prompt_of(40, seed=9)
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True, "return_embedding": {"over": "all"}}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert [("embedding" in chunk["meta_info"]) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    check(hf, prompt, chunks[-1], over="all")


def test_text_prompt(server: Server, hf: HuggingFace) -> None:
    """A text prompt is embedded as the tokens that the server's tokenizer makes of it."""
    text = "def add(a, b):\n    return a + b\n"
    body = {"text": text, "sampling_params": {"max_new_tokens": 0}, "return_embedding": True}
    meta = httpx.post(f"{server.url}/generate", json=body, timeout=120).json()["meta_info"]
    ids = hf.tokenizer(text)["input_ids"]
    assert meta["embedding_tokens"] == len(ids)
    assert relative_error(meta["embedding"], hf.pooled(ids, [], "mean", "prompt")) <= FLOAT32_ERROR


def test_answer_formats(server: Server, hf: HuggingFace) -> None:
    """``dimensions`` cuts, ``normalize`` scales what is left, ``base64`` is little-endian float32."""
    prompt = prompt_of(25, seed=10)
    expected = hf.pooled(prompt, [0], "mean", "prompt")[:16]
    options = {"dimensions": 16, "normalize": True, "encoding_format": "base64"}
    embedding = ask(server, prompt, options)["meta_info"]["embedding"]
    found = np.frombuffer(base64.b64decode(embedding), "<f4")
    assert found.shape == (16,)
    assert relative_error(found, expected / np.linalg.norm(expected)) <= FLOAT32_ERROR


def test_who_does_not_ask_gets_the_stock_answer(server: Server) -> None:
    """Nothing of ours in an answer, alone or beside one that asked; ``false`` asks for nothing."""
    prompt = prompt_of(25, seed=11)
    for embedding in (False, None):
        assert "embedding" not in ask(server, prompt, embedding)["meta_info"]


def test_retraction_chunks_and_mixed_batches(strained: Server, hf: HuggingFace) -> None:
    """Requests that were retracted and prefilled again in chunks have the right rows of prompt and output."""
    prompts = [prompt_of(40 + 3 * i, seed=200 + i) for i in range(12)]
    answers = ask(strained, prompts, {"over": "all"}, max_new_tokens=40)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["meta_info"]["embedding_tokens"] == len(prompt) + 39
        check(hf, prompt, answer, over="all")


def test_bfloat16(bf16: Server, hf: HuggingFace) -> None:
    """The model's own precision: the direction is the float32 reference's."""
    prompts = [prompt_of(length, seed=300 + length) for length in (1, 30, 150)]
    for _ in range(2):
        for prompt, answer in zip(prompts, ask(bf16, prompts, embedding=True), strict=True):
            expected = hf.pooled(prompt, answer["output_ids"], "mean", "prompt")
            assert cosine(answer["meta_info"]["embedding"], expected) >= BFLOAT16_COSINE


def test_after_flush(server: Server, hf: HuggingFace) -> None:
    """/flush_cache forgets prefixes and rows alike; what comes after is computed again."""
    prompt = prompt_of(60, seed=12)
    ask(server, prompt, embedding=True)
    assert httpx.post(f"{server.url}/flush_cache?timeout=30", timeout=60).status_code == 200
    answer = ask(server, prompt, embedding=True)
    assert answer["meta_info"]["cached_tokens"] == 0
    check(hf, prompt, answer)
