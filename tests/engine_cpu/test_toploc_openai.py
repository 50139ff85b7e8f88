"""TOPLOC fingerprints on OpenAI's routes: in messages and choices, in streams, and verified as in the guide."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.claims import CLAIM, FINGERPRINTS, RESULT, claim_of, post, prompt_of, verdicts
from tessera_testing.endpoints import flush_cache

MESSAGES = [{"role": "user", "content": "def push(self, item):"}]


def answer_to(server: Server, messages: Any, **fields: Any) -> Any:
    """The choice of a greedy chat; of all that ask this the same."""
    requested = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 45}
    return post(server, "/v1/chat/completions", requested | fields).raise_for_status().json()["choices"][0]


def validate_chat(server: Server, prompt: Any, answer: str, claim: Any, **fields: Any) -> Any:
    """The way of the guide, by messages."""
    messages = [*prompt, {"role": "assistant", "content": answer}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 0, CLAIM: claim}
    validated = post(server, "/v1/chat/completions", body | fields).raise_for_status().json()
    return json.loads(validated["choices"][0]["message"][RESULT])


def test_chat_as_in_the_guide(fingerprinting: Server) -> None:
    """``--toploc-verification``: fingerprints in the message; verified by messages, with ``max_tokens`` 0."""
    choice = answer_to(fingerprinting, MESSAGES)
    text, fingerprints = choice["message"]["content"], choice["message"][FINGERPRINTS]
    assert (choice["finish_reason"], len(fingerprints)) == ("stop", 3)  # after 41 of 45 tokens
    assert validate_chat(fingerprinting, MESSAGES, text, fingerprints[-1])["exp_mismatches"] <= 8
    every = validate_chat(fingerprinting, MESSAGES, text, fingerprints)
    assert [one["exp_mismatches"] <= 8 for one in every] == [True] * len(fingerprints)


def test_chat_with_another_prompt(fingerprinting: Server) -> None:
    """The guide's way detects it, by the prompt's own fingerprint and by the last one alone."""
    message = answer_to(fingerprinting, MESSAGES)["message"]
    prompt = [{"role": "user", "content": "import os, sys\nclass Queue:\n    def __init__(self):\n        pass"}]
    every = validate_chat(fingerprinting, prompt, message["content"], message[FINGERPRINTS])
    last = validate_chat(fingerprinting, prompt, message["content"], message[FINGERPRINTS][-1])
    assert every[-1] == last
    assert [one["exp_mismatches"] > 38 for one in (every[0], last)] == [True, True]


def test_chat_with_another_answer(fingerprinting: Server) -> None:
    """To the same prompt: its fingerprint holds, and the guide's way detects the answer by the last one alone."""
    message = answer_to(fingerprinting, MESSAGES)["message"]
    other = answer_to(fingerprinting, [{"role": "user", "content": "class Queue:"}])["message"]["content"]
    for text in (other, message["content"][::-1], "Sofia"):
        last = validate_chat(fingerprinting, MESSAGES, text, message[FINGERPRINTS][-1])
        assert last["exp_mismatches"] > 38, text
    every = validate_chat(fingerprinting, MESSAGES, other, message[FINGERPRINTS])
    assert [one["exp_mismatches"] > 38 for one in every] == [False, True, True]


def test_chat_by_ids(fingerprinting: Server) -> None:
    """``input_ids`` and ``output_ids`` are the response, whatever the messages say; alone the latter are refused."""
    requested = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    shown = {"return_input_ids": True, "return_output_ids": True}
    answer = post(fingerprinting, "/v1/chat/completions", requested | shown).raise_for_status().json()
    (choice,) = answer["choices"]
    fingerprints = choice["message"][FINGERPRINTS]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    ids = {"input_ids": choice["input_ids"], "output_ids": choice["output_ids"]}
    body = {"model": "tiny", "messages": messages, "max_tokens": 0, CLAIM: fingerprints, **ids}

    def validate(**changes: Any) -> Any:
        return post(fingerprinting, "/v1/chat/completions", body | changes)

    def mismatches(**changes: Any) -> list[int]:
        (validated,) = validate(**changes).raise_for_status().json()["choices"]
        return [one["exp_mismatches"] for one in json.loads(validated["message"][RESULT])]

    assert max(mismatches()) <= 8
    assert mismatches(output_ids=ids["output_ids"][::-1])[1] > 38
    refused: list[dict[str, Any]] = [{CLAIM: None, "max_tokens": 4}, {"input_ids": None}, {"output_ids": [1024]}]
    for change in refused:
        answered = validate(**change)
        assert answered.status_code == 400, change
        assert answered.json()["error"]["param"].startswith("output_ids")


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
THOUGHT = {"type": "thinking", "thinking": "2+2"}
TOOL = {"type": "function", "function": {"name": "push", "parameters": {"type": "object", "properties": {}}}}
HIDDEN: dict[str, tuple[list[Any], str]] = {
    "text and calls": (
        [*MESSAGES, {"role": "assistant", "content": "I call f", "tool_calls": [CALL]}],
        "an answer with tool calls",
    ),
    "calls": ([*MESSAGES, {"role": "assistant", "tool_calls": [CALL]}], "an answer with tool calls"),
    "reasoning": (
        [*MESSAGES, {"role": "assistant", "content": "4", "reasoning_content": "2+2"}],
        "an answer without its reasoning",
    ),
    "thoughts": ([*MESSAGES, {"role": "assistant", "content": [THOUGHT]}], "an answer without its reasoning"),
    "parts": (
        [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "4"}]}],
        "an answer that is not one text",
    ),
    "image": ([{"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": "a cat"}], "an image"),
}
"""Messages that do not say which tokens were run, and what is said of them."""


@pytest.mark.parametrize("what", HIDDEN)
def test_messages_that_do_not_say_which_tokens(fingerprinting: Server, what: str) -> None:
    """Are unverifiable, with the reason: an honest answer would fail. In a stream too; what is malformed is a 400."""
    messages, reason = HIDDEN[what]
    fingerprints = answer_to(fingerprinting, MESSAGES)["message"][FINGERPRINTS]
    body = {"model": "tiny", "messages": messages, "max_tokens": 0, CLAIM: fingerprints}
    (choice,) = post(fingerprinting, "/v1/chat/completions", body).raise_for_status().json()["choices"]
    (streamed,) = choices_of(fingerprinting, "/v1/chat/completions", body)
    assert choice["message"] == streamed["delta"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    result = json.loads(choice["message"][RESULT])
    assert result["verdict"] == "unverifiable"
    assert result["reason"].startswith(reason)
    malformed: list[dict[str, Any]] = [{CLAIM: ["AAAA"]}, {"max_tokens": 4}, {"n": 2}, {"toploc_nonce": ""}]
    for change in malformed:
        assert post(fingerprinting, "/v1/chat/completions", body | change).status_code == 400, change


def claim_with(messages: list[Any], answer: Any, **changes: Any) -> Any:
    """What ``/v1/toploc/verify`` takes: a chat with its answer."""
    message = {"role": "assistant", "content": answer["message"]["content"]}
    return {"messages": [*messages, message], "fingerprints": answer["message"][FINGERPRINTS], **changes}


def test_claims_with_messages(fingerprinting: Server) -> None:
    """In one request: honest ones are verified beside one whose tokens are not known, and others' are detected."""
    plain, tooled = answer_to(fingerprinting, MESSAGES), answer_to(fingerprinting, MESSAGES, tools=[TOOL])
    honest = claim_with(MESSAGES, plain)
    claims = [
        {**honest, "messages": HIDDEN["text and calls"][0]},
        honest,
        claim_with(MESSAGES, tooled, tools=[TOOL]),
        {**honest, "messages": HIDDEN["image"][0]},
        claim_with([{"role": "user", "content": "import os, sys\nclass Queue:"}], plain),
        {**honest, "fingerprints": honest["fingerprints"][:1]},
    ]
    results = post(fingerprinting, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()["results"]
    unverifiable, passed, failed = "unverifiable", "pass", "fail"
    expected = [unverifiable, passed, passed, unverifiable, failed, unverifiable]
    assert [result["verdict"] for result in results] == expected, results
    reasons = [result["reason"] for result in results if result["verdict"] == unverifiable]
    for reason, begins in zip(reasons, ("an answer with tool calls", "an image", "the last message has"), strict=True):
        assert reason.startswith(begins)
    assert verdicts(fingerprinting, *claims) == expected  # with its cached prefixes


def test_a_claim_of_messages_alone(fingerprinting: Server) -> None:
    """That end with no answer: the prompt's fingerprint."""
    (prompts,) = answer_to(fingerprinting, MESSAGES, max_tokens=1)["message"][FINGERPRINTS]
    assert verdicts(fingerprinting, {"messages": MESSAGES, "fingerprints": [prompts]}) == ["pass"]


def test_malformed_claims_with_messages(fingerprinting: Server) -> None:
    """Each is a 400 that names its field."""
    honest = claim_with(MESSAGES, answer_to(fingerprinting, MESSAGES))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"messages": []}, "claims[1].messages"),
        ({"messages": "x"}, "claims[1].messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "claims[1].messages.0"),
        ({"messages": [{"role": "user", "content": 5}]}, "claims[1].messages.0"),
        ({"tools": [{"type": "function"}]}, "claims[1].tools.0"),
        ({"tools": 5}, "claims[1].tools"),
        ({"chat_template_kwargs": 5}, "claims[1].chat_template_kwargs"),
        ({"input_ids": [1]}, "claims[1].input_ids"),
        ({"x": 1}, "claims[1].x"),
    ]
    for change, field in refused:
        answer = post(fingerprinting, "/v1/toploc/verify", {"claims": [honest, honest | change]})
        assert answer.status_code == 400, change
        assert answer.json()["error"]["param"].startswith(field), answer.text
        assert len(answer.text) < 1000
    assert verdicts(fingerprinting, honest) == ["pass"]


def test_an_answer_that_read_tools_is_verified(fingerprinting: Server) -> None:
    """With the same tools, as they are a part of the prompt."""
    message = answer_to(fingerprinting, MESSAGES, tools=[TOOL])["message"]
    every = validate_chat(fingerprinting, MESSAGES, message["content"], message[FINGERPRINTS], tools=[TOOL])
    assert [one["exp_mismatches"] <= 8 for one in every] == [True] * len(message[FINGERPRINTS])


def choices_of(server: Server, path: str, body: Any) -> list[Any]:
    """The choices of a stream's chunks, in their order."""
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def test_chat_streams(fingerprinting: Server) -> None:
    """In the chunk that completes it, long before the last one; ids of each choice with the last one."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "def pop(self):"}],
        "max_tokens": 140,
        "ignore_eos": True,
        "return_input_ids": True,
        "return_output_ids": True,
    }
    choices = choices_of(fingerprinting, "/v1/chat/completions", body)
    found = [one for choice in choices for one in choice["delta"].get(FINGERPRINTS, [])]
    ids = {name: choice[name] for choice in choices for name in ("input_ids", "output_ids") if name in choice}
    assert len(ids["output_ids"]) == 140
    assert verdicts(fingerprinting, {**ids, "fingerprints": found}) == ["pass"]
    where = [i for i, choice in enumerate(choices) for _ in choice["delta"].get(FINGERPRINTS, [])]
    (end,) = (i for i, choice in enumerate(choices) if choice["finish_reason"])
    assert len(where) == 1 + -(-139 // 32)
    assert (where[0], where[1] < end) == (0, True)  # a server that has to wait puts several tokens into a chunk


def test_completions_stream(server: Server) -> None:
    """The same fingerprints as in one piece, each once, in the chunk that completes it."""
    requested = {"return_toploc_fingerprints": True, "return_input_ids": True, "return_output_ids": True}
    body = {"model": "tiny", "prompt": prompt_of(40, 70), "max_tokens": 140, "temperature": 0, "ignore_eos": True}
    choices = choices_of(server, "/v1/completions", body | requested)
    # From nothing, as the first time: rows of a cached prompt are those of another batch.
    flush_cache(server)
    (whole,) = post(server, "/v1/completions", body | requested).raise_for_status().json()["choices"]
    assert [one for choice in choices for one in choice.get(FINGERPRINTS, [])] == whole[FINGERPRINTS]
    ids = {name: choice[name] for choice in choices for name in ("input_ids", "output_ids") if name in choice}
    assert ids == {name: whole[name] for name in ids}
    assert len(ids["output_ids"]) == 140
    where = [i for i, choice in enumerate(choices) for _ in choice.get(FINGERPRINTS, [])]
    (end,) = (i for i, choice in enumerate(choices) if choice["finish_reason"])
    assert len(where) == 1 + -(-139 // 32)
    assert (where[0], where[1] < end) == (0, True)


def test_completions(fingerprinting: Server) -> None:
    """On the choice; verified by ids, with ``max_tokens`` 0, which other completions may not have."""
    body = {"model": "tiny", "prompt": "import os\n", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    answer = post(fingerprinting, "/v1/completions", body | {"return_input_ids": True, "return_output_ids": True})
    (choice,) = answer.raise_for_status().json()["choices"]
    assert verdicts(fingerprinting, claim_of(choice)) == ["pass"]
    claim = {
        "prompt": choice["input_ids"],
        "output_ids": choice["output_ids"],
        "max_tokens": 0,
        CLAIM: choice[FINGERPRINTS],
    }
    answer = post(fingerprinting, "/v1/completions", {"model": "tiny", **claim})
    (validated,) = answer.raise_for_status().json()["choices"]
    assert [one["exp_mismatches"] <= 8 for one in json.loads(validated[RESULT])] == [True] * 3
    assert post(fingerprinting, "/v1/completions", body | {"max_tokens": 0}).status_code == 400
