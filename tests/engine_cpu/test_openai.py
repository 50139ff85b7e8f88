"""Embeddings and raw states on the choices of OpenAI's completions, through the openai SDK itself."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tessera.testing.reference import HuggingFace, relative_error
from tessera.testing.server import Server

FLOAT32_ERROR = 1e-5
MESSAGES: Any = [{"role": "user", "content": "def add(a, b):"}]
ALL = {"return_embedding": {"over": "all"}, "return_hidden_states": True, "hidden_states_format": "base64"}
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 12}


@pytest.fixture
def sdk(server: Server) -> openai.OpenAI:
    """OpenAI's own client."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def rows_of(states: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The matrix in the base64 form."""
    return np.frombuffer(base64.b64decode(states["data"]), "<f4").reshape(states["shape"])


def check(choice: Any, prompt: list[int], output: list[int], hf: HuggingFace) -> None:
    """The choice holds the mean over all tokens and every row."""
    states = hf.states([*prompt, *output[:-1]])
    assert choice.embedding_tokens == len(states)
    assert relative_error(choice.embedding, states.mean(0)) <= FLOAT32_ERROR
    assert relative_error(rows_of(choice.hidden_states), states) <= FLOAT32_ERROR


def test_chat(sdk: openai.OpenAI, hf: HuggingFace) -> None:
    """Two choices of different text, each with its own rows; the rest of the answer is SGLang's."""
    extra = {**ALL, "return_token_ids": True}
    sampled = {**GREEDY, "temperature": 1.5, "n": 2, "seed": 3}
    answer: Any = sdk.chat.completions.create(messages=MESSAGES, extra_body=extra, **sampled)
    assert len(answer.choices) == 2
    assert answer.choices[0].token_ids != answer.choices[1].token_ids
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        check(choice, choice.prompt_token_ids, choice.token_ids, hf)
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in answer.choices)


def test_chat_stream(sdk: openai.OpenAI, hf: HuggingFace) -> None:
    """The last chunk has it, each row once, and the text of the chunks is that of the plain stream."""
    extra = {"return_token_ids": True}
    plain: Any = sdk.chat.completions.create(messages=MESSAGES, extra_body=extra, **GREEDY).choices[0]
    usage = {"include_usage": True}
    streaming: dict[str, Any] = {**GREEDY, "stream": True, "stream_options": usage}
    stream: Any = sdk.chat.completions.create(messages=MESSAGES, extra_body=ALL, **streaming)
    *chunks, last = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.message.content
    assert not any(hasattr(choice, "embedding") for chunk in chunks for choice in chunk.choices)
    check(last.choices[0], plain.prompt_token_ids, plain.token_ids, hf)


def test_completions(sdk: openai.OpenAI, hf: HuggingFace) -> None:
    """A batch of prompts, not streamed and streamed."""
    prompts = ["import os\n", "class Stack:\n    def"]
    extra = {**ALL, "return_token_ids": True}
    answer: Any = sdk.completions.create(prompt=prompts, extra_body=extra, **GREEDY)
    for choice in answer.choices:
        check(choice, choice.prompt_token_ids, choice.token_ids, hf)
    *_, last = list(sdk.completions.create(prompt=prompts, extra_body=ALL, stream=True, **GREEDY))
    for choice, plain in zip(last.choices, answer.choices, strict=True):
        check(choice, plain.prompt_token_ids, plain.token_ids, hf)


def test_last_state_as_list(sdk: openai.OpenAI, hf: HuggingFace) -> None:
    """``"last"`` as SGLang has it: one flat list."""
    extra = {"return_hidden_states": "last", "return_token_ids": True}
    choice: Any = sdk.completions.create(prompt="import os\n", extra_body=extra, **GREEDY).choices[0]
    states = hf.states([*choice.prompt_token_ids, *choice.token_ids[:-1]])
    assert relative_error(choice.hidden_states, states[-1]) <= FLOAT32_ERROR


def test_who_does_not_ask_gets_sglangs_answer(sdk: openai.OpenAI) -> None:
    """No field of ours on a choice."""
    choice = sdk.completions.create(prompt="import os\n", **GREEDY).choices[0]
    assert not {"embedding", "embedding_tokens", "hidden_states"} & set(choice.to_dict())


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"return_embedding": {"pooling": "median"}}, "return_embedding.pooling"),
        ({"return_embedding": 7}, "return_embedding"),
        ({"return_embedding": {"over": "output"}, "max_tokens": 1}, "return_embedding.over"),
        ({"return_hidden_states": "first"}, "return_hidden_states"),
        ({"return_hidden_states": True, "hidden_states_format": "pickle"}, "hidden_states_format"),
        ({"custom_params": {"tessera_embed": "{}"}}, "sampling_params.custom_params"),
    ],
)
def test_bad_fields(server: Server, path: str, fields: dict[str, Any], param: str) -> None:
    """400 with the field; the next good request is right."""
    own = {"prompt": "import os"} if path == "completions" else {"messages": MESSAGES}
    body = {**GREEDY, **own}
    answer = httpx.post(f"{server.url}/v1/{path}", json=body | fields, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert httpx.post(f"{server.url}/v1/{path}", json=body, timeout=60).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_one_choice_is_its_requests_error(server: Server, stream: bool) -> None:
    """A position that does not exist can be seen only at the end."""
    body = {**GREEDY, "prompt": "import os", "stream": stream, "return_hidden_states": {"positions": [500]}}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == (200 if stream else 400)
    assert "position 500 is not among" in answer.text
    assert "hidden_states" not in answer.text
