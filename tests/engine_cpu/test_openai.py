"""Embeddings and raw states on the choices of OpenAI's completions, through the openai SDK itself."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tessera.launching.server import Server
from tessera_testing.reference import HuggingFace, relative_error

FLOAT32_ERROR = 1e-5
STATES = "hidden_states"
MESSAGES: Any = [{"role": "user", "content": "def add(a, b):"}]
ALL = {"return_embedding": {"over": "all"}, "return_hidden_states": True, "hidden_states_format": "base64"}
IDS = {"return_input_ids": True, "return_output_ids": True}
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
    extra = {**ALL, **IDS, "ignore_eos": True}
    sampled = {**GREEDY, "temperature": 2, "n": 2}
    answer: Any = sdk.chat.completions.create(messages=MESSAGES, extra_body=extra, **sampled)
    assert len(answer.choices) == 2
    assert answer.choices[0].output_ids != answer.choices[1].output_ids
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        check(choice, choice.input_ids, choice.output_ids, hf)
    assert answer.usage.completion_tokens == sum(len(choice.output_ids) for choice in answer.choices)


def events_of(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """The chunks of a stream, in their order, usage among them; its last event is ``[DONE]``."""
    requested = {**GREEDY, **body, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{server.url}/v1/{path}", json=requested, timeout=120) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def kind_of(chunk: Any) -> str:
    """What one chunk is for: usage, the end of a choice, its states with where they are, or "" for text."""
    if not chunk["choices"]:
        return "usage"
    (choice,) = chunk["choices"]
    if STATES in choice or STATES in choice.get("delta", {}):
        return "states" if STATES in choice else "delta's states"
    return "end" if choice["finish_reason"] else ""


def merge_choices(chunks: list[Any]) -> dict[int, Any]:
    """Merge the fields of each choice, whichever of its chunks and deltas they came with."""
    choices: dict[int, Any] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            own = choices.setdefault(choice["index"], SimpleNamespace())
            own.__dict__.update(choice.get("delta", {}) | choice)
    return choices


@pytest.mark.parametrize("wanted", [True, "last"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": MESSAGES}),
        ("chat/completions", {"messages": MESSAGES, "n": 2}),
        ("completions", {"prompt": "import os\n"}),
        ("completions", {"prompt": ["import os\n", "class Stack:\n    def"]}),
        ("completions", {"prompt": "import os\n", "n": 2}),
    ],
)
def test_a_streams_states_are_where_sglang_has_them(
    server: Server, stock: Server, path: str, body: dict[str, Any], wanted: object
) -> None:
    """In one more chunk for each choice, before usage: in its delta, or on the choice where it has none."""
    own, theirs = (
        [kind_of(chunk) for chunk in events_of(each, path, body | {"return_hidden_states": wanted})]
        for each in (server, stock)
    )
    assert list(filter(None, own)) == list(filter(None, theirs))


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_streams_fields_come_with_the_finish_reason(
    server: Server, sdk: openai.OpenAI, hf: HuggingFace, path: str
) -> None:
    """Two sampled choices: each one's fields with its ``finish_reason``, its rows once, and nothing after usage."""
    prompt: dict[str, Any] = {"messages": MESSAGES} if path == "chat/completions" else {"prompt": "import os\n"}
    shown = {"return_input_ids": True, "return_output_ids": True}
    requested = {**prompt, **ALL, **shown, "n": 2, "temperature": 1.5, "ignore_eos": True}
    chunks = events_of(server, path, requested)
    ends = [one for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    withs = [one for chunk in chunks for one in chunk["choices"] if {"embedding", "output_ids"} & one.keys()]
    assert ends == withs
    # Without this key, litellm drops a chunk that has no text.
    assert path == "completions" or all(one["delta"]["provider_specific_fields"] == {} for one in ends)
    assert sorted(one["index"] for one in ends) == [0, 1]
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    assert [kind_of(chunk) for chunk in chunks].count("usage") == 1
    for choice in merge_choices(chunks).values():
        check(choice, choice.input_ids, choice.output_ids, hf)
    create: Any = sdk.chat.completions.create if path == "chat/completions" else sdk.completions.create
    greedy = {**GREEDY, **prompt}
    plain = create(**greedy, extra_body=IDS).choices[0]
    *_, last, rows = create(**greedy, extra_body=ALL, stream=True)
    if path == "chat/completions":
        last.choices[0].hidden_states = rows.choices[0].delta.hidden_states
    else:
        last.choices[0].hidden_states = rows.choices[0].hidden_states
    check(last.choices[0], plain.input_ids, plain.output_ids, hf)


def test_completions(sdk: openai.OpenAI, hf: HuggingFace) -> None:
    """A batch of prompts."""
    prompts = ["import os\n", "class Stack:\n    def"]
    extra = {**ALL, "return_token_ids": True}
    answer: Any = sdk.completions.create(prompt=prompts, extra_body=extra, **GREEDY)
    for choice in answer.choices:
        check(choice, choice.prompt_token_ids, choice.token_ids, hf)


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
        ({"custom_params": {"tessera": {"token": "0 ", "embed": "{}"}}}, "sampling_params.custom_params"),
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


def test_completions_of_no_token(server: Server, hf: HuggingFace) -> None:
    """``max_tokens: 0`` beside our fields only reads the prompt, streamed or not; without them it is SGLang's 400."""
    ids = [[5, 6, 7], [8, 9]]
    body = {"model": "tiny", "prompt": ids, "max_tokens": 0, "return_embedding": True, "return_hidden_states": "last"}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    for choice, prompt in zip(answer["choices"], ids, strict=True):
        assert choice["text"] == ""
        assert relative_error(choice["embedding"], hf.pooled(prompt, [], "mean", "prompt")) <= FLOAT32_ERROR
        assert relative_error(choice["hidden_states"], hf.states(prompt)[-1]) <= FLOAT32_ERROR
    streamed = httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=60)
    assert streamed.text.count('"embedding"') == 2
    for echo in (False, True):
        listing = {**body, "prompt": "abc", "logprobs": 1, "echo": echo}
        answer = httpx.post(f"{server.url}/v1/completions", json=listing, timeout=60).raise_for_status().json()
        assert "".join(answer["choices"][0]["logprobs"]["tokens"]) == ("abc" if echo else "")
    plain = httpx.post(
        f"{server.url}/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 0}, timeout=60
    )
    assert plain.status_code == 400
