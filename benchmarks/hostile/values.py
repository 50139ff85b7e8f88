"""Values of every JSON type for the fields that several routes take, right ones and nearly right ones among them."""

from __future__ import annotations

import json
from typing import Any

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
    [True, 5000],
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
    "custom_params": (None, {}, {"a": 1}, {"a": {"b": {"c": 1}}}, {"a": 2**70}, {"tessera": {"token": "x"}}, [1], "a"),
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
