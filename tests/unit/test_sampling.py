"""Sampling parameters and fields of a request: what SGLang would not survive is refused with its name and bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tessera import request_fields, sampling
from tessera.errors import BadRequest, TooLarge

VOCABULARY = 1024
CONTEXT = 2**15
NAN = float("nan")

WRONG: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (2.5, 1e3, 2.0, "0", -1, True, 2**31, [1]),
    "min_new_tokens": (1.5, "1", -1, True, 2**31),
    "stop": (5, [5], [None], {}, "\ud800", ["a"] * 1025, "a" * 65_537, ["a" * 65_535, "ab"]),
    "stop_token_ids": ([-5], [1024], [2.5], ["5"], [True], 5, "5", [[5]]),
    "stop_regex": ("[", "(", ["a", "("], 5, "a" * 513, ["a" * 256, "a" * 257]),
    "temperature": (-0.1, NAN, float("inf"), "0.5", True, 10**40),
    "top_p": (0, 1.5, NAN, "0.9", -1),
    "top_k": (0, -2, 2.0, "5", True, 2**31),
    "min_p": (-0.1, 1.1, NAN, "0"),
    "frequency_penalty": (-2.1, 2.1, NAN, "1"),
    "presence_penalty": (-2.1, 2.1, NAN, "1"),
    "repetition_penalty": (0, 1e-39, 2.1, NAN, "1"),
    "n": (0, -1, "2", 2.0, None, True, 10**9),
    "json_schema": ({"type": "object"}, 5, ["a"]),
    "regex": (5, ["a"]),
    "ebnf": (5,),
    "structural_tag": ({},),
    "ignore_eos": (1, "true", [True]),
    "skip_special_tokens": (0, "no"),
    "spaces_between_special_tokens": (1,),
    "no_stop_trim": (1,),
    "stream_interval": (0, -1, 1.5, "1", True),
    "logit_bias": (
        {"5": 1e39},
        {"5": NAN},
        {"5": "1"},
        {"5": None},
        {"-1": 1},
        {"1024": 1},
        {"a": 1},
        {"²": 1},
        [5],
        5,
    ),
    "sampling_seed": (1.5, "1", 2**63, True),
    "custom_params": ([1], "a", {"a": {"b": {"c": 1}}}, {"a": 2**70}, {"a": [[1]]}),
    "stop_strs": (["a"],),
    "is_normalized": (True,),
    "no_such": (1, None),
}

RIGHT: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (0, 1, 2**31 - 1, None),
    "min_new_tokens": (0, 4, None),
    "stop": ("a", ["a", "é🙂"], [], None, ["a"] * 1024, "a" * 65_536),
    "stop_token_ids": ([], [0, 1023], {5}, None),
    "stop_regex": ("[0-9]+", ["a", "b"], None, "a" * 512),
    "temperature": (0, 0.0, 1e-30, 100, None),
    "top_p": (1, 1e-9, None),
    "top_k": (-1, 1, 2**31 - 1, None),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2.0),
    "presence_penalty": (-2, 2.0),
    "repetition_penalty": (1e-6, 2, 1.0),
    "n": (1, 8),
    "json_schema": ("{}", "", None),
    "stream_interval": (1, None),
    "logit_bias": ({}, {"0": -100, "1023": 1e30}, {5: 1}, None),
    "sampling_seed": (0, -1, 2**63 - 1),
    "custom_params": ({}, {"a": 1, "b": [1, None, "x"], "c": {"d": 2.5}, "e": True}, {"tessera": object()}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_by_name(name: str) -> None:
    """In one object and in the second of a list."""
    for value in WRONG[name]:
        for params, field in (({name: value}, "sampling_params"), ([{}, {name: value}], "sampling_params[1]")):
            with pytest.raises(BadRequest, match="allowed: ") as caught:
                sampling.check(params, VOCABULARY)
            assert caught.value.field.startswith(f"{field}.{name}"), value


@pytest.mark.parametrize("name", RIGHT)
def test_right_values_pass(name: str) -> None:
    """What SGLang takes, at the bounds."""
    for value in RIGHT[name]:
        sampling.check({name: value}, VOCABULARY)
        sampling.check([{name: value}, {}], VOCABULARY)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"min_new_tokens": 3, "max_new_tokens": 2}, "sampling_params.min_new_tokens"),
        ({"min_new_tokens": 1, "stop_token_ids": list(range(1024))}, "sampling_params.stop_token_ids"),
        ({"regex": "a", "ebnf": "b"}, "sampling_params.ebnf"),
        ([], "sampling_params"),
        ([{}, None], "sampling_params[1]"),
        ("a", "sampling_params"),
    ],
)
def test_combinations(params: Any, field: str) -> None:
    """What is right alone and wrong together, and what is no object."""
    with pytest.raises(BadRequest) as caught:
        sampling.check(params, VOCABULARY)
    assert caught.value.field == field


def test_grammars_where_they_would_end_the_server() -> None:
    """Refused, with the option that helps; an empty one is none."""
    with pytest.raises(BadRequest, match="--grammar-backend llguidance"):
        sampling.check({"regex": "a"}, VOCABULARY, grammars=False)
    sampling.check({"regex": "", "json_schema": None}, VOCABULARY, grammars=False)


FIELDS = (
    *(
        "text",
        "input_ids",
        "input_embeds",
        "sampling_params",
        "token_ids_logprob",
        "session_params",
        "top_logprobs_num",
    ),
    *request_fields.PER_PROMPT,
    *request_fields.SINGLE,
    *request_fields.MEDIA,
    "modalities",
)
ONE: dict[str, Any] = {"input_ids": [5, 6]}
TWO: dict[str, Any] = {"text": ["a", "b"]}


def request(**fields: Any) -> SimpleNamespace:
    """With all fields that are looked at."""
    return SimpleNamespace(**(dict.fromkeys(FIELDS) | fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (ONE | {"rid": ["a"]}, "rid"),
        (ONE | {"return_logprob": [True]}, "return_logprob"),
        (ONE | {"top_logprobs_num": 1025}, "top_logprobs_num"),
        (ONE | {"top_logprobs_num": -1}, "top_logprobs_num"),
        (ONE | {"logprob_start_len": -2}, "logprob_start_len"),
        (ONE | {"token_ids_logprob": [1024]}, "token_ids_logprob[0]"),
        (ONE | {"token_ids_logprob": [[5]]}, "token_ids_logprob"),
        (ONE | {"token_ids_logprob": [5, 6, 5]}, "token_ids_logprob"),
        (ONE | {"sampling_params": [{}]}, "sampling_params"),
        (ONE | {"bootstrap_room": 2**63}, "bootstrap_room"),
        (ONE | {"priority": 2**63}, "priority"),
        (ONE | {"session_params": {"no": 1}}, "session_params.no"),
        (ONE | {"session_params": {"offset": -(2**31) - 1}}, "session_params.offset"),
        (ONE | {"session_params": {"id": 5}}, "session_params.id"),
        (ONE | {"session_params": "s"}, "session_params"),
        (TWO | {"rid": ["a"]}, "rid"),
        (TWO | {"return_logprob": [True, None]}, "return_logprob[1]"),
        (TWO | {"token_ids_logprob": [[5]]}, "token_ids_logprob"),
        (TWO | {"token_ids_logprob": [[5], [-1]]}, "token_ids_logprob[1][0]"),
        (TWO | {"token_ids_logprob": [[5], [6, 6]]}, "token_ids_logprob[1]"),
        (TWO | {"sampling_params": [{}, {}, {}]}, "sampling_params"),
        (TWO | {"video_data": ["a"]}, "video_data"),
        (TWO | {"modalities": ["image"]}, "modalities"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "text[1]"),
        ({"text": ["a", None]}, "text[1]"),
        (ONE | TWO, "input_ids"),
        (TWO | {"input_ids": [[5], [6], [7]]}, "input_ids"),
        ({"text": "a", "input_ids": [[5], [6]]}, "input_ids"),
        ({"text": "a", "input_ids": [[5]]}, "input_ids"),
    ],
)
def test_fields_of_a_request(fields: dict[str, Any], named: str) -> None:
    """A list only beside as many prompts, each value of its type and within its bounds."""
    with pytest.raises(BadRequest) as caught:
        request_fields.check(request(**fields), VOCABULARY, CONTEXT)
    assert caught.value.field == named


MANY = list(range(1024))


def test_logprobs_of_an_answer_without_a_limit() -> None:
    """It ends with the context: so many are counted for null, and no more for a limit beyond."""
    for limit in (None, 2**31 - 1):
        requested = request(**ONE, token_ids_logprob=MANY, sampling_params={"max_new_tokens": limit})
        request_fields.check(requested, VOCABULARY, 2**14)
        with pytest.raises(TooLarge, match="log-probabilities"):
            request_fields.check(requested, VOCABULARY, 2**14 + 1)


@pytest.mark.parametrize(
    ("most", "more", "name"),
    [
        ((ONE, {"max_new_tokens": 2**14}), (ONE, {"max_new_tokens": 2**14 + 1}), "top_logprobs_num"),
        ((TWO, {"max_new_tokens": 2**13}), (TWO, {"max_new_tokens": 2**13 + 1}), "token_ids_logprob"),
        ((ONE, {"n": 128}), (ONE, {"n": 129}), "token_ids_logprob"),
        ((TWO, [{}, {"max_new_tokens": 2**13}]), (TWO, [{}, {"max_new_tokens": 2**13 + 1}]), "token_ids_logprob"),
        ((ONE, {"max_new_tokens": 2**14 - 2}), (ONE, {"max_new_tokens": 2**14 - 1}), "logprob_start_len"),
    ],
)
def test_how_many_logprobs_an_answer_can_have(most: Any, more: Any, name: str) -> None:
    """2^24 in all: those of tokens, of prompts that are known, of each prompt and sample."""
    requested: dict[str, Any] = (
        {"top_logprobs_num": 1024} if name == "top_logprobs_num" else {"token_ids_logprob": MANY}
    )
    if name == "logprob_start_len":
        requested["logprob_start_len"] = 0
    prompts, params = most
    request_fields.check(request(**prompts, **requested, sampling_params=params), VOCABULARY, CONTEXT)
    prompts, params = more
    with pytest.raises(TooLarge, match="log-probabilities"):
        request_fields.check(request(**prompts, **requested, sampling_params=params), VOCABULARY, CONTEXT)


@pytest.mark.parametrize(
    "fields",
    [
        ONE | {"rid": "a", "return_logprob": True, "top_logprobs_num": 1024, "logprob_start_len": -1, "priority": -3},
        ONE | {"token_ids_logprob": [5, 6], "session_params": {"id": "s", "offset": None, "replace": True}},
        ONE | {"session_params": {"id": "s", "rid": "a", "offset": -1, "drop_previous_output": True}, "lora_path": ""},
        ONE | {"image_data": ["a", "b"], "token_ids_logprob": []},
        TWO | {"rid": ["a", "b"], "lora_path": ["a", None], "token_ids_logprob": [[5], [6, 7]], "extra_key": "k"},
        TWO | {"sampling_params": [{"n": 2}, {"n": 2}], "token_ids_logprob": [5]},
        ONE | {"text": "a"},
        TWO | {"input_ids": [[5], [6]]},
        {"text": "", "audio_data": "a"},
        {"input_embeds": [[[0.1]], [[0.2]]], "rid": ["a", "b"]},
    ],
)
def test_right_fields_pass(fields: dict[str, Any]) -> None:
    """As SGLang takes them."""
    request_fields.check(request(**fields), VOCABULARY, CONTEXT)


def test_samples_have_a_limit() -> None:
    """Prompts times n: SGLang makes an object for each before it looks at any."""
    with pytest.raises(TooLarge):
        request_fields.check(request(**TWO, sampling_params={"n": 8193}), VOCABULARY, CONTEXT)
    request_fields.check(request(**TWO, sampling_params={"n": 8192}), VOCABULARY, CONTEXT)


def test_internal_fields_are_not_for_clients() -> None:
    """What SGLang's main process fills itself."""
    for name in request_fields.INTERNAL:
        with pytest.raises(BadRequest, match=f"{name}: "):
            request_fields.refuse_internal({name: ["a"]})
    request_fields.refuse_internal({"lora_id": None, "rid": "a"})
    request_fields.refuse_internal("no object")
