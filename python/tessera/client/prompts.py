"""What callers give as prompts: checked here, where the place of a wrong one is still known."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from operator import index

import numpy as np

from tessera.client.options import Prompt

_NO_IDS = (str, bytes, bytearray, Mapping, AbstractSet)
"""Iterable, and no list of token ids."""


def as_prompts(method: str, name: str, given: Iterable[Prompt]) -> list[Prompt]:
    """The prompts of a call as a list: texts, and token ids as lists of integers.

    Args:
        method: whose argument it is, for messages.
        name: of the argument.
        given: by the caller; anything that can be gone through once.

    Raises:
        TypeError: one text, or the ids of one: its letters or ids would be taken for prompts; or what is no prompt.
    """
    takes = f"{method}() takes a list of prompts"
    single = f"{takes}, and this is a single one: put it into a list"
    if isinstance(given, str):
        raise TypeError(single)
    if isinstance(given, _NO_IDS) or not hasattr(given, "__iter__"):
        raise TypeError(f"{takes}, and this is {reprlib.repr(given)}")
    found = list(given)
    if found and isinstance(found[0], int | np.integer):
        raise TypeError(single)
    return [one if isinstance(one, str) else token_ids(one, f"{name}[{i}]") for i, one in enumerate(found)]


def token_ids(given: Sequence[int], name: str = "the prompt") -> list[int]:
    """Token ids as a list of Python's integers.

    Raises:
        TypeError: they are none.
    """
    with suppress(TypeError):
        if not isinstance(given, _NO_IDS):
            return [index(item) for item in given]
    raise TypeError(f"{name} is {reprlib.repr(given)}; a prompt is a text, or a list of token ids")
