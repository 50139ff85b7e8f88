"""Request bodies as a careless or hostile client sends them, for every route that takes one: seeded, endless.

A body is one that the route accepts, with a few fields set to values from `ANYTHING`, or from a short list of values
that are nearly right for that field.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from hostile.fields import (
    ANTHROPIC,
    CHAT,
    CLAIMS,
    COMPLETIONS,
    EMBEDDINGS,
    ENCODE,
    MESSAGES,
    NATIVE,
    OLLAMA_OPTIONS,
    OPENAI,
    PARSING,
    RESPONSES,
    SCORE,
    SESSIONS,
)
from hostile.values import ANYTHING, FLAGS, OURS, PROMPTS, SAMPLING, STOCK, TEXT_PROMPTS, TEXTS
from tessera_testing.tiny import TINY


class Route(NamedTuple):
    """One route.

    Attributes:
        path: of the URL.
        good: a body that it accepts.
        fields: values that are nearly right, by field.
        inside: a field whose own fields are changed as well, and these.
    """

    path: str
    good: dict[str, Any]
    fields: dict[str, tuple[Any, ...]]
    inside: tuple[str, dict[str, tuple[Any, ...]]] | None = None


_CHAT_GOOD = {"model": "tiny", "messages": MESSAGES[0], "max_tokens": 2, "temperature": 0}
_CHAT_FIELDS = {**STOCK, **OPENAI, **CHAT, **OURS}
_GENERATE_FIELDS = {**STOCK, **NATIVE, **OURS}
_GREEDY = {"max_new_tokens": 2, "temperature": 0}
_PLAIN = {"return_toploc_fingerprints": False}
"""What a server that proves every response wants to hear on routes that cannot."""
_STREAM = {"stream": FLAGS}
_CLAIM = {"input_ids": [5, 6], "output_ids": [7], "fingerprints": ["/9k="]}

ROUTES = (
    Route("/generate", {"input_ids": [5, 6, 7], "sampling_params": _GREEDY}, {}, ("sampling_params", SAMPLING)),
    Route("/generate", {"text": "def f", "sampling_params": _GREEDY}, {}, ("sampling_params", SAMPLING)),
    Route("/generate", {"input_ids": [5, 6, 7], "sampling_params": _GREEDY}, _GENERATE_FIELDS),
    Route("/generate", {"input_ids": [[5, 6], [7, 8]], "sampling_params": _GREEDY}, _GENERATE_FIELDS),
    Route("/generate", {"input_ids": [5, 6], "sampling_params": _GREEDY | {"n": 2}}, _GENERATE_FIELDS),
    Route("/generate", {"text": "def f", "return_logprob": True, "sampling_params": _GREEDY}, _GENERATE_FIELDS),
    Route("/v1/completions", {"model": "tiny", "prompt": [5, 6], "max_tokens": 2}, STOCK | OPENAI | COMPLETIONS | OURS),
    Route("/v1/completions", {"model": "tiny", "prompt": "a", "logprobs": 2}, STOCK | OPENAI | COMPLETIONS | OURS),
    Route("/v1/chat/completions", _CHAT_GOOD, _CHAT_FIELDS),
    Route("/invocations", _CHAT_GOOD, _CHAT_FIELDS),
    Route("/vertex_generate", {"instances": [{"text": "a"}], "parameters": {"sampling_params": _GREEDY}}, {}, None),
    Route(
        "/vertex_generate",
        {"instances": [{"input_ids": [5, 6]}], "parameters": {"sampling_params": _GREEDY}},
        {"instances": ([], [{}], [{"text": ""}], [{"input_ids": []}], [None], "a", [{"text": "a", "image_data": 5}])},
        ("parameters", _GENERATE_FIELDS),
    ),
    Route("/v1/responses", {"model": str(TINY), "input": "a", "max_output_tokens": 2} | _PLAIN, RESPONSES | OURS),
    Route("/v1/messages", {"model": "tiny", "messages": MESSAGES[0], "max_tokens": 2} | _PLAIN, ANTHROPIC | OURS),
    Route("/v1/messages/count_tokens", {"model": "tiny", "messages": MESSAGES[0]}, ANTHROPIC),
    Route(
        "/api/chat",
        {"model": "tiny", "messages": MESSAGES[0], "stream": False, "options": {"num_predict": 2}} | _PLAIN,
        _STREAM | {"messages": MESSAGES, "format": (None, "json", {}, {"type": 5}, "x"), "think": FLAGS} | OURS,
        ("options", OLLAMA_OPTIONS),
    ),
    Route(
        "/api/generate",
        {"model": "tiny", "prompt": "a", "stream": False, "options": {"num_predict": 2}} | _PLAIN,
        {"prompt": TEXT_PROMPTS, "stream": FLAGS, "raw": FLAGS, "context": PROMPTS, "system": TEXTS, "images": TEXTS}
        | OURS,
        ("options", OLLAMA_OPTIONS),
    ),
    Route("/v1/embeddings", {"model": "tiny", "input": "a"}, EMBEDDINGS),
    Route("/encode", {"text": "a"}, ENCODE),
    Route("/v1/toploc/verify", {"claims": [_CLAIM]}, {"claims": CLAIMS}),
    Route("/v1/score", {"model": "tiny", "query": "a", "items": ["b"], "label_token_ids": [5]}, SCORE | OURS),
    Route("/v1/rerank", {"query": "a", "documents": ["b"]}, {"query": TEXT_PROMPTS, "documents": TEXT_PROMPTS}),
    Route("/classify", {"text": "a"}, ENCODE),
    Route("/v1/classify", {"model": "tiny", "input": "a"}, EMBEDDINGS),
    Route("/tokenize", {"model": "tiny", "prompt": "a"}, {"prompt": TEXT_PROMPTS, "add_special_tokens": FLAGS} | CHAT),
    Route("/detokenize", {"model": "tiny", "tokens": [5]}, {"tokens": PROMPTS, "skip_special_tokens": FLAGS}),
    Route("/open_session", {"capacity_of_str_len": 100}, SESSIONS),
    Route("/close_session", {"session_id": "s"}, {"session_id": TEXTS}),
    Route("/parse_function_call", {"text": "a", "tools": [], "tool_call_parser": "qwen25"}, PARSING),
    Route("/separate_reasoning", {"text": "a", "reasoning_parser": "deepseek-r1"}, PARSING),
)


NO_JSON = (b"", b"{", b"\xff\xfe", b"\x00", b'{"text": "a"', b'{"text": "a", "text": ["a"]}', b"[" * 5000, b"text=a")


class Hostile(NamedTuple):
    """One request: where it goes, and its body as bytes, which need not be JSON."""

    path: str
    content: bytes


def hostile(chooser: random.Random) -> Hostile:
    """One request of a random route."""
    route = chooser.choice(ROUTES)
    if chooser.random() < 0.01:  # no object at all
        return Hostile(route.path, chooser.choice((*NO_JSON, *map(encoded, ANYTHING))))
    body = dict(route.good)
    if route.inside is not None and (not route.fields or chooser.random() < 0.7):
        name, fields = route.inside
        body[name] = changed(chooser, body[name], fields)
    else:
        body = changed(chooser, body, route.fields or {"no_such_field": ANYTHING})
    return Hostile(route.path, encoded(body))


def changed(chooser: random.Random, good: dict[str, Any], fields: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """A good object with one to three fields set to something else."""
    wrong = chooser.choices(list(fields), k=chooser.choice([1, 1, 1, 2, 3]))
    value: Callable[[str], Any] = lambda name: chooser.choice(chooser.choice([fields[name], fields[name], ANYTHING]))  # noqa: E731
    return good | {name: value(name) for name in wrong}


def encoded(value: Any) -> bytes:
    """JSON, and what Python writes where JSON has nothing: NaN, infinities, halves of surrogate pairs."""
    return json.dumps(value).encode()
