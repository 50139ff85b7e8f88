"""Request bodies as a careless or hostile client sends them, for every route that takes one: seeded, endless.

A body is one that the route accepts, with a few fields set to values from `ANYTHING`, or from a short list of values
that are nearly right for that field.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

NAN, INFINITY = float("nan"), float("inf")

ANYTHING: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, -5, 7, 2.0, 2.5, 1e3, -0.0, 1e-30, 1e39, -1e39, 1e308, NAN, INFINITY, -INFINITY),
    *(1023, 1024, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
    *("", "0", "2", "1.5", "true", "nan", "a", "last", "\x00", "\ud800", "é🙂", "(", "[a-z]+", "x" * 3000, "{}"),
    *([], [0], [1], [-5], [2**40], [2**63], [2.5], [True], [None], ["a"], ["a", "b"], [""], [[]], [[1]], [[1], [2]]),
    *([[[1]]], [{}], [1, "a"], list(range(600)), {}, {"a": 1}, {"5": 1e39}, {"5": 1}, {"-1": 0}, {"id": "s"}),
    json.loads("[" * 60 + "]" * 60),
)
"""Values of every JSON type, at and beyond the bounds of the types that carry them."""

INTS = (0, 1, 2, 3, 7, -1, "2", 2.0, None, 2**31, 1024, 1025)
NUMBERS = (0, 0.0, 0.5, 1, 1.0, 2, -2.0, 2.0001, -1e-7, 1e-7, 1e39, NAN, "0.5", None)
FLAGS = (True, False, None, 0, 1, "true", "yes", [True])
TEXTS = (None, "", "a", "x", ["a"], ["a", ""], [None], 5, "\ud800")
IDS: tuple[Any, ...] = (
    None,
    [],
    [5],
    [5, 6],
    [0],
    [1023],
    [1024],
    [-1],
    [[5]],
    [[5], [6]],
    [[5], []],
    [5.0],
    ["5"],
    5,
    [True],
)
PROMPTS: tuple[Any, ...] = (
    *([5, 6, 7], [[5, 6], [7]], [[5, 6], []], [[], []], [], [[]], [5, -1], [5, 1024], [5, 2**40], [5, 2.0], [5, True]),
    *([5, "6"], [[5], 6], [[5], [6], "a"], [[[5]]], [5, None], [None], 5, "5", [[5, 6, 7]] * 3),
)
TEXT_PROMPTS: tuple[Any, ...] = (
    "def f",
    ["def f", "x"],
    ["def f", ""],
    "",
    [""],
    [],
    ["a", 5],
    [["a"]],
    5,
    None,
    "\ud800",
    "\x00",
)
VECTORS = (None, [[0.1] * 256], [[0.1] * 255], [[0.1] * 256] * 2, {"positions": [0], "embeds": [[0.1] * 256]}, "AAAA")
SCHEMAS = (
    *(None, "", "{}", '{"type": "object"}', '{"type": 5}', '{"$ref": "#/x"}', "$$ANY$$", {"type": "object"}, "[", "("),
    *("a+", "(a|b)*c", "[", "\\", "a{99999}", "root ::= 'a'", 'root ::= "a"', "::=", "\ud800", "\x00", 5, ["a"]),
)

SAMPLING: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (0, 1, 2, 3, 5, 2.5, 1e3, "0", None, -1, True, 2**31, 2**63),
    "min_new_tokens": INTS,
    "stop": TEXTS,
    "stop_token_ids": IDS,
    "stop_regex": (*TEXTS, "[", "a{1000000000}", "(a+)+$", "a" * 500, ["("]),
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "top_k": INTS,
    "min_p": NUMBERS,
    "frequency_penalty": NUMBERS,
    "presence_penalty": NUMBERS,
    "repetition_penalty": NUMBERS,
    "n": (1, 2, 3, 0, -1, "2", 2.0, None, True),
    "json_schema": SCHEMAS,
    "regex": SCHEMAS,
    "ebnf": SCHEMAS,
    "structural_tag": (*SCHEMAS, '{"type": "structural_tag"}', '{"structures": [], "triggers": []}'),
    "ignore_eos": FLAGS,
    "skip_special_tokens": FLAGS,
    "spaces_between_special_tokens": FLAGS,
    "no_stop_trim": FLAGS,
    "stream_interval": INTS,
    "logit_bias": (None, {}, {"5": 1}, {"5": 1e39}, {"5": -100}, {"1024": 1}, {"a": 1}, {"5": "1"}, {"5": None}, [5]),
    "sampling_seed": (*INTS, 2**63, -(2**63)),
    "custom_params": (None, {}, {"a": 1}, {"a": {"b": {"c": 1}}}, {"a": 2**70}, {"tessera_token": "x"}, [1], "a"),
    "stop_strs": TEXTS,
    "is_normalized": FLAGS,
    "stop_str_max_len": INTS,
    "no_such_parameter": ANYTHING,
}
"""Sampling parameters, and values that are nearly right for each."""

OURS: dict[str, tuple[Any, ...]] = {
    "return_embedding": (True, False, {}, {"pooling": "last"}, {"pooling": "median"}, {"over": "output"}, [True]),
    "return_hidden_states": (True, False, "last", {"over": "all"}, {"positions": [0]}, {"positions": [-1]}, [True]),
    "hidden_states_format": ("list", "base64", "x", None),
    "input_embed_overrides": VECTORS,
    "return_toploc_fingerprints": FLAGS,
    "toploc_nonce": (*TEXTS, "ab"),
    "toploc_verification_fingerprint_to_validate": (None, "/9k=", ["/9k="], [], ""),
    "output_ids": IDS,
    "return_input_ids": FLAGS,
    "return_output_ids": FLAGS,
    "return_row_hashes": FLAGS,
}
"""Our fields of a request."""

STOCK: dict[str, tuple[Any, ...]] = {
    "rid": (None, "a", ["a"], ["a", "b"], ["a", "a"], "", 5, [5]),
    "session_id": (None, "s", "", 5),
    "session_params": (None, {}, {"id": "s"}, {"id": None}, {"id": 5}, {"offset": -1}, {"rid": "x"}, {"no": 1}, "s"),
    "lora_path": (None, "a", ["a"], [None], [None, None]),
    "custom_logit_processor": (None, "", "a", ["a"], '{"callable": "00"}'),
    "bootstrap_host": (None, "h", ["h"], 5),
    "bootstrap_port": INTS,
    "bootstrap_room": (*INTS, 2**63, [1], [None]),
    "routed_dp_rank": INTS,
    "disagg_prefill_dp_rank": (*INTS, 2**63),
    "priority": (*INTS, 2**63),
    "extra_key": (None, "k", ["k"], ["k", "l"], "", 5, [5]),
    "return_routed_experts": FLAGS,
    "routed_experts_start_len": INTS,
    "custom_labels": (None, {}, {"a": "b"}, {"a": 1}),
    "images_config": (None, {}, {"a": 1}),
    "stream": FLAGS,
}
"""SGLang's fields that several routes share."""

NATIVE: dict[str, tuple[Any, ...]] = {
    "text": TEXT_PROMPTS,
    "input_ids": PROMPTS,
    "input_embeds": VECTORS,
    "input_embeds_b64": VECTORS,
    "positional_embed_overrides": VECTORS,
    "image_data": (None, "a", ["a"], [None], [], [["a"]], {"a": 1}),
    "video_data": (None, "a", ["a"], [None]),
    "audio_data": (None, "a", ["a"], [None]),
    "mm_hashes": TEXTS,
    "sampling_params": (None, {}, [], [{}], [{}, {}], [{"n": 2}, {}], [None], "a", 5, {"max_new_tokens": 1}),
    "return_logprob": (*FLAGS, [True, False], []),
    "logprob_start_len": (*INTS, -2, 4, 2**63, [0], [0, 0], [-5], [None]),
    "top_logprobs_num": (*INTS, -2, 5000, 2**63, [1], [1, 2], [None]),
    "token_ids_logprob": IDS,
    "return_sampling_mask": FLAGS,
    "return_text_in_logprobs": FLAGS,
    "return_flat_raw_top_logprobs": FLAGS,
    "return_flat_raw_top_logprobs_b64": FLAGS,
    "log_metrics": FLAGS,
    "return_indexer_topk": FLAGS,
    "modalities": (None, [], ["image"], ["video"], ["a"], [None]),
    "lora_id": (None, "a", ["a"]),
    "bootstrap_pair_key": TEXTS,
    "decode_tp_size": (*INTS, [1]),
    "routing_key": TEXTS,
    "conversation_id": TEXTS,
    "http_worker_ipc": (None, "ipc:///tmp/no-such-socket", "a"),
    "background": FLAGS,
    "require_reasoning": FLAGS,
    "max_thinking_tokens": INTS,
    "no_logs": FLAGS,
    "return_bytes": FLAGS,
    "return_entropy": FLAGS,
    "return_prompt_token_ids": FLAGS,
    "external_trace_header": (None, {}, {"traceparent": "x"}),
    "received_time": (None, 0, 1.5, NAN, "a"),
    "need_wait_for_mm_inputs": FLAGS,
    "num_items_assigned": (None, {}, {"IMAGE": [1]}, {"a": [1]}),
    "mm_data_mooncake": (None, [], [1], ["a"]),
    "encoder_urls": (None, [], ["http://127.0.0.1:1"]),
    "max_dynamic_patch": INTS,
    "min_dynamic_patch": INTS,
    "multi_item_delimiter_indices": (None, [], [0], [1, 2], [[0]], [[0], [1]], [-1], [9]),
    "use_audio_in_video": FLAGS,
    "no_such_field": ANYTHING,
}
"""Fields of ``/generate`` alone."""

OPENAI: dict[str, tuple[Any, ...]] = {
    "model": ("tiny", "", "tiny:adapter", 5, None),
    "n": SAMPLING["n"],
    "logit_bias": SAMPLING["logit_bias"],
    "seed": SAMPLING["sampling_seed"],
    "stop": TEXTS,
    "min_tokens": INTS,
    "stream_options": (None, {}, {"include_usage": True}, {"include_usage": 5}, "a"),
    "response_format": (
        *(None, {}, {"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "structural_tag"}),
        *({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}}, {"type": 5}, "json_object"),
    ),
    "user": TEXTS,
    "cache_salt": TEXTS,
    "data_parallel_rank": INTS,
    "return_cached_tokens_details": FLAGS,
    "return_token_ids": FLAGS,
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty")},
    **{name: SAMPLING[name] for name in ("presence_penalty", "repetition_penalty", "stop_token_ids", "stop_regex")},
    **{name: SAMPLING[name] for name in ("regex", "ebnf", "ignore_eos", "no_stop_trim", "skip_special_tokens")},
    "custom_params": SAMPLING["custom_params"],
}

MESSAGES: tuple[Any, ...] = (
    *([{"role": "user", "content": "def"}], [], [{}], [{"role": "user"}], [{"role": "x", "content": "a"}], "a", None),
    *([{"role": "assistant", "content": "a"}], [{"role": "user", "content": ""}], [{"role": "user", "content": [1]}]),
    *([{"role": "tool", "content": "a"}], [{"role": "system", "content": "a"}], [None], {"role": "user"}),
    [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}],
)
TOOLS: tuple[Any, ...] = (
    *(None, [], [{}], [{"type": "function", "function": {"name": "f"}}], [{"type": "x"}], "a"),
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}, "strict": True}}],
)
CHAT = {
    "messages": MESSAGES,
    "input_ids": PROMPTS,
    "logprobs": FLAGS,
    "top_logprobs": INTS,
    "max_tokens": SAMPLING["max_new_tokens"],
    "max_completion_tokens": SAMPLING["max_new_tokens"],
    "tools": TOOLS,
    "tool_choice": ("auto", "none", "required", {"type": "function", "function": {"name": "f"}}, "x", {}),
    "reasoning_effort": (None, "low", "max", 0.5, 2.0, "x"),
    "chat_template_kwargs": (None, {}, {"a": 1}, {"messages": 5}, {"tokenize": True}),
    "continue_final_message": FLAGS,
    "return_prompt_token_ids": FLAGS,
    "return_meta_info": FLAGS,
}
COMPLETIONS = {
    "prompt": (*PROMPTS, *TEXT_PROMPTS),
    "best_of": INTS,
    "echo": FLAGS,
    "logprobs": INTS,
    "max_tokens": SAMPLING["max_new_tokens"],
    "suffix": TEXTS,
    "json_schema": SCHEMAS,
}
EMBEDDINGS = {
    "input": (*PROMPTS, *TEXT_PROMPTS),
    "model": OPENAI["model"],
    "dimensions": INTS,
    "encoding_format": ("float", "base64", "x", None),
    "pooling": ("mean", "last", "x", None),
    "normalize": FLAGS,
    "user": TEXTS,
}
ENCODE = {"text": TEXT_PROMPTS, "input_ids": PROMPTS, "hidden_size": INTS, "rid": STOCK["rid"]}
CLAIMS = (
    *([], [{}], [None], {}, "a", [{"input_ids": [5], "output_ids": [6], "fingerprints": ["/9k="]}]),
    *([{"input_ids": ids, "output_ids": [6], "fingerprints": ["/9k="]}] for ids in PROMPTS),
    *([{"input_ids": [5], "output_ids": ids, "fingerprints": ["/9k="]}] for ids in PROMPTS),
    *([{"input_ids": [5], "output_ids": [], "fingerprints": prints}] for prints in (["/9k="], [], None, "a", [5])),
)
RESPONSES = {
    "input": (*TEXT_PROMPTS, *MESSAGES),
    "model": OPENAI["model"],
    "max_output_tokens": SAMPLING["max_new_tokens"],
    "instructions": TEXTS,
    "background": FLAGS,
    "store": FLAGS,
    "stream": FLAGS,
    "top_logprobs": INTS,
    "previous_response_id": TEXTS,
    "request_id": TEXTS,
    "tools": TOOLS,
    "tool_choice": CHAT["tool_choice"],
    "priority": STOCK["priority"],
    "extra_key": TEXTS,
    "stop": TEXTS,
    "reasoning": (None, {}, {"effort": "low"}, {"effort": 5}),
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty")},
}
ANTHROPIC = {
    "messages": MESSAGES,
    "max_tokens": SAMPLING["max_new_tokens"],
    "model": OPENAI["model"],
    "system": (*TEXTS, [{"type": "text", "text": "a"}]),
    "stop_sequences": TEXTS,
    "stream": FLAGS,
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "top_k": INTS,
    "tools": (None, [], [{"name": "f", "input_schema": {"type": "object"}}], [{"name": "f"}], [{}]),
    "tool_choice": (None, {"type": "auto"}, {"type": "tool", "name": "f"}, {"type": "x"}),
    "metadata": (None, {}, {"user_id": "a"}),
    "thinking": (None, {"type": "enabled", "budget_tokens": 1}, {"type": "x"}),
}
OLLAMA_OPTIONS = {
    "num_predict": SAMPLING["max_new_tokens"],
    "stop": TEXTS,
    "seed": SAMPLING["sampling_seed"],
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty")},
}
SCORE = {
    "query": (*TEXT_PROMPTS, [5, 6]),
    "items": (*TEXT_PROMPTS, [[5], [6]], [[5], []]),
    "label_token_ids": IDS,
    "apply_softmax": FLAGS,
    "item_first": FLAGS,
    "embed_override_token_id": INTS,
    "query_embed_overrides": VECTORS,
    "item_embed_overrides": VECTORS,
    "model": OPENAI["model"],
}


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
    Route("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": 2} | _PLAIN, RESPONSES),
    Route("/v1/messages", {"model": "tiny", "messages": MESSAGES[0], "max_tokens": 2} | _PLAIN, ANTHROPIC),
    Route("/v1/messages/count_tokens", {"model": "tiny", "messages": MESSAGES[0]}, ANTHROPIC),
    Route(
        "/api/chat",
        {"model": "tiny", "messages": MESSAGES[0], "stream": False, "options": {"num_predict": 2}} | _PLAIN,
        {"messages": MESSAGES, "stream": FLAGS, "format": (None, "json", {}, {"type": 5}, "x"), "think": FLAGS},
        ("options", OLLAMA_OPTIONS),
    ),
    Route(
        "/api/generate",
        {"model": "tiny", "prompt": "a", "stream": False, "options": {"num_predict": 2}} | _PLAIN,
        {"prompt": TEXT_PROMPTS, "stream": FLAGS, "raw": FLAGS, "context": PROMPTS, "system": TEXTS, "images": TEXTS},
        ("options", OLLAMA_OPTIONS),
    ),
    Route("/v1/embeddings", {"model": "tiny", "input": "a"}, EMBEDDINGS),
    Route("/encode", {"text": "a"}, ENCODE),
    Route("/v1/toploc/verify", {"claims": [_CLAIM]}, {"claims": CLAIMS}),
    Route("/v1/score", {"model": "tiny", "query": "a", "items": ["b"], "label_token_ids": [5]}, SCORE),
    Route("/v1/rerank", {"query": "a", "documents": ["b"]}, {"query": TEXT_PROMPTS, "documents": TEXT_PROMPTS}),
    Route("/classify", {"text": "a"}, ENCODE),
    Route("/v1/classify", {"model": "tiny", "input": "a"}, EMBEDDINGS),
    Route("/tokenize", {"model": "tiny", "prompt": "a"}, {"prompt": TEXT_PROMPTS, "add_special_tokens": FLAGS} | CHAT),
    Route("/detokenize", {"model": "tiny", "tokens": [5]}, {"tokens": PROMPTS, "skip_special_tokens": FLAGS}),
)


class Hostile(NamedTuple):
    """One request: where it goes, and its body as bytes, which need not be JSON."""

    path: str
    content: bytes


def hostile(chooser: random.Random) -> Hostile:
    """One request of a random route."""
    route = chooser.choice(ROUTES)
    if chooser.random() < 0.01:  # no object at all
        return Hostile(route.path, encoded(chooser.choice(ANYTHING)))
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
