"""Sampling parameters that SGLang accepts: type and bounds of each, checked before a request goes anywhere.

SGLang checks some of them, and its scheduler ends with the server on most of the others: a text or a 2.5 where an
integer belongs, an infinite logit, a token id that the model does not have.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from tessera.carry import KEY
from tessera.errors import BadRequest, Described, TooLarge
from tessera.fields import boolean, integer, known_keys, number, text
from tessera.limits import MAX_PATTERN_CHARACTERS, MAX_SAMPLES, MAX_STOP_CHARACTERS, MAX_STOPS

FIELD = "sampling_params"

INT32, INT64 = 2**31 - 1, 2**63 - 1
"""The largest number of what a step's tensors, and messages between processes, hold."""
LARGEST_LOGIT = 1e30
"""Divided by SGLang's smallest temperature, 1e-6, it is still a float32: beyond that, softmax gives NaN."""
SMALLEST_REPETITION = 1e-6
"""Logits divided by this and by the smallest temperature are still float32."""

DEFAULT_NEW_TOKENS = 128
"""SGLang's ``max_new_tokens`` where a request has none; with null there is no limit but the context."""

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""Parameters that constrain what is generated; one at most."""

Check = Callable[[str, Any], object]


def texts(field: str, value: object) -> list[str]:
    """Check a text or a list of texts; returns a list.

    Raises:
        BadRequest: it is something else, or a text has halves of surrogate pairs.
    """
    if not isinstance(value, str | list):
        raise BadRequest(field, value, "a text, or a list of texts")
    if isinstance(value, str):
        return [text(field, value)]
    return [text(f"{field}[{i}]", one) for i, one in enumerate(value)]


def stops(field: str, value: object) -> None:
    """Stop strings, one or a list, of a number and length that a tokenizer takes in a moment."""
    given = value if isinstance(value, list) else [value]
    _at_most(field, f"{len(given)} texts", len(given), MAX_STOPS, "texts")
    _short(field, given, MAX_STOP_CHARACTERS)
    texts(field, value)


def _short(field: str, given: list[Any], most: int) -> None:
    length = sum(len(one) for one in given if isinstance(one, str))
    _at_most(field, f"{length} characters", length, most, "characters")


def _at_most(field: str, found: str, number: int, most: int, what: str) -> None:
    if number > most:
        raise TooLarge(field, Described(found), f"at most {most} {what}, all together")


def patterns(field: str, value: object) -> None:
    """Regular expressions of Python's, one or a list, of `MAX_PATTERN_CHARACTERS` together.

    Raises:
        BadRequest: one is none.
        TooLarge: they are longer.
    """
    _short(field, value if isinstance(value, list) else [value], MAX_PATTERN_CHARACTERS)
    for pattern in texts(field, value):
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise BadRequest(field, pattern, f"a regular expression: {error}") from None


def token_ids(field: str, value: object, vocabulary: int) -> None:
    """A list of token ids below ``vocabulary``; of any size where that is 0: the model is not known."""
    most = vocabulary - 1 if vocabulary else INT64
    if not isinstance(value, list | tuple | set | frozenset):
        raise BadRequest(field, value, "a list of token ids")
    if any(type(token) is not int or not 0 <= token <= most for token in value):
        i, item = next((i, one) for i, one in enumerate(value) if type(one) is not int or not 0 <= one <= most)
        raise BadRequest(f"{field}[{i}]", item, f"a token id, 0 to {most}; others are out-of-vocabulary")


def biases(field: str, value: object, vocabulary: int) -> None:
    """An object of finite numbers by token id."""
    if not isinstance(value, dict):
        raise BadRequest(field, value, "an object: a number for each token id")
    most = vocabulary - 1 if vocabulary else INT64
    for key, bias in value.items():
        name = str(key)
        if not (name.isascii() and name.isdigit() and len(name) < len(str(INT64)) and int(name) <= most):
            raise BadRequest(f"{field}.{name}", bias, f"a token id, 0 to {most}, as the key")
        number(f"{field}.{name}", bias, -LARGEST_LOGIT, LARGEST_LOGIT)


def custom(field: str, value: object) -> None:
    """An object of what SGLang carries to the scheduler: numbers, texts, and lists and objects of them."""
    if not isinstance(value, dict):
        raise BadRequest(field, value, "an object")
    for key, own in value.items():
        text(field, key)
        if key != KEY:  # `tessera.carry.take` checks who wrote it
            items = own.values() if isinstance(own, dict) else own if isinstance(own, list) else [own]
            if not all(map(_carried, items)):
                allowed = "numbers of 64 bits, texts, true, false, null, or one list or object of them"
                raise BadRequest(f"{field}.{key}", own, allowed)


def _carried(item: object) -> bool:
    if isinstance(item, int):
        return -INT64 <= item <= INT64
    return item is None or isinstance(item, str | float)


def nothing(field: str, value: object) -> None:
    """A parameter that is not supported beside our features."""
    raise BadRequest(field, value, "null: it is not supported with Tessera's features")


CHECKS: Mapping[str, Check] = {
    "max_new_tokens": partial(integer, least=0, most=INT32),
    "min_new_tokens": partial(integer, least=0, most=INT32),
    "stop": stops,
    "stop_regex": patterns,
    "temperature": partial(number, least=0, most=LARGEST_LOGIT),
    "top_p": partial(number, least=0, most=1, above=True),
    "min_p": partial(number, least=0, most=1),
    "frequency_penalty": partial(number, least=-2, most=2),
    "presence_penalty": partial(number, least=-2, most=2),
    "repetition_penalty": partial(number, least=SMALLEST_REPETITION, most=2),
    **dict.fromkeys(GRAMMARS, text),
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "no_stop_trim": boolean,
    "stream_interval": partial(integer, least=1, most=INT32),
    "sampling_seed": partial(integer, least=-INT64, most=INT64),
    "custom_params": custom,
}
"""What each parameter takes; null is taken by all of them, as its default."""
OF_THE_MODEL: Mapping[str, Callable[[str, Any, int], object]] = {
    "stop_token_ids": token_ids,
    "logit_bias": biases,
}
"""The same for those whose bounds depend on the vocabulary."""
NAMES = [*CHECKS, *OF_THE_MODEL, "top_k", "n"]
"""Every parameter of a request; SGLang's class has further fields, which are no request's."""
LATER: Mapping[str, Check] = {"watermark": nothing, "beam_width": nothing, "ebnf_full_assistant": boolean}
"""Those that not all supported versions of SGLang have. Its OpenAI routes write null where nobody asked for one."""


def check(value: Any, vocabulary: int, *, grammars: bool = True, later: Collection[str] = ()) -> None:
    """Refuse sampling parameters of a request that SGLang would not survive, or would answer with a 500.

    Args:
        value: one object, one for each prompt, or none.
        vocabulary: how many token ids the model has; 0 where it is not known.
        grammars: whether the server survives a grammar.
        later: which of `LATER` there are.

    Raises:
        BadRequest: names the parameter, its value and what is allowed.
    """
    if value is None:
        return
    if isinstance(value, list) and not value:
        raise BadRequest(FIELD, value, "an object, or a list with one for each prompt")
    for i, params in enumerate(value if isinstance(value, list) else [value]):
        field = f"{FIELD}[{i}]" if isinstance(value, list) else FIELD
        _check_one(field, params, vocabulary, later)
        _check_together(field, params, vocabulary)
        _check_grammars(field, params, grammars=grammars)


def _check_one(field: str, params: object, vocabulary: int, later: Collection[str]) -> None:
    if not isinstance(params, dict):
        raise BadRequest(field, params, "an object")
    known_keys(field, params, [*NAMES, *later])
    for name, value in params.items():
        if name == "n":
            integer(f"{field}.n", value, 1, MAX_SAMPLES)
        elif value is None:
            continue
        elif name == "top_k":
            _top_k(f"{field}.top_k", value)
        elif name in OF_THE_MODEL:
            OF_THE_MODEL[name](f"{field}.{name}", value, vocabulary)
        else:
            (CHECKS.get(name) or LATER[name])(f"{field}.{name}", value)


def _top_k(field: str, value: object) -> None:
    if value == -1 and type(value) is int:
        return
    if type(value) is not int or not 1 <= value <= INT32:
        raise BadRequest(field, value, f"-1, or an integer, 1 to {INT32}")


def _check_together(field: str, params: dict[str, Any], vocabulary: int) -> None:
    least, most = params.get("min_new_tokens") or 0, params.get("max_new_tokens")
    if most is not None and least > most:
        raise BadRequest(f"{field}.min_new_tokens", least, f"no more than max_new_tokens, which is {most}")
    stops = params.get("stop_token_ids") or ()
    if least and vocabulary and 2 * len(set(stops)) > vocabulary:
        allowed = "ids of at most half of the vocabulary beside min_new_tokens, or no token could come"
        raise BadRequest(f"{field}.stop_token_ids", Described(f"{len(stops)} ids"), allowed)


def _check_grammars(field: str, params: dict[str, Any], *, grammars: bool) -> None:
    given = [name for name in GRAMMARS if params.get(name)]
    if len(given) > 1:
        raise BadRequest(f"{field}.{given[1]}", params[given[1]], f"one of {', '.join(GRAMMARS)}; {given[0]} is set")
    if given and not grammars:
        backend = "nothing: --grammar-backend xgrammar needs a GPU; start the server with --grammar-backend llguidance"
        raise BadRequest(f"{field}.{given[0]}", params[given[0]], backend)
