"""How large an answer can be at most, by hand, and what is refused for it."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import admission
from tessera.answer_bytes import AnswerBudget, PromptRequest
from tessera.capabilities.registry import requested
from tessera.capability import Server, Shape
from tessera.errors import TooLarge
from tessera_testing.carried import uses

H = 64
SHAPE = Shape(hidden_size=H, value_bytes=2, context=100)
SERVER = Server(rows=True, hidden_size=H, deterministic=True)
ROW, LISTED = H * 2, H * 32


def states(value: object, form: str = "base64", **params: object) -> dict[str, Any]:
    """Sampling parameters of a request for raw states."""
    return params_with(params, return_hidden_states=value, hidden_states_format=form)


def params_with(params: dict[str, Any], **fields: object) -> dict[str, Any]:
    """Sampling parameters of a request with these fields."""
    found, _ = admission.admit(fields, params, SERVER)
    assert isinstance(found, dict)
    return found


def check(most: int, params: list[dict[str, Any]], tokens: list[int | None]) -> int:
    """`AnswerBudget.check` of these prompts."""
    each = [PromptRequest(uses(own), own, count) for own, count in zip(params, tokens, strict=True)]
    return AnswerBudget(SHAPE, most).check(each)


@pytest.mark.parametrize(
    ("params", "prompt", "most"),
    [
        (states({"positions": [0] * 50}, max_new_tokens=1), 3, 50 * ROW),
        (states({"positions": [0] * 50}, max_new_tokens=1, n=64), 3, 65 * 50 * ROW),
        (states({"positions": [0] * 50}, "list", max_new_tokens=1), 3, 50 * LISTED),
        (states("last"), 3, ROW),
        (states(True, max_new_tokens=8), 10, 17 * ROW),
        (states({"over": "prompt"}, max_new_tokens=8), 10, 10 * ROW),
        (states({"over": "output"}, max_new_tokens=8), 10, 7 * ROW),
        (states({"over": "output"}, max_new_tokens=0), 10, 0),
        (states(True), 10, 99 * ROW),  # SGLang's 128 tokens, and the context's 100
        (states(True, max_new_tokens=None), 10, 99 * ROW),
        (states(True, max_new_tokens=8, n=2), 10, 3 * 17 * ROW),
        (states(True, max_new_tokens=8), None, 7 * ROW),
    ],
)
def test_bytes(params: dict[str, Any], prompt: int | None, most: int) -> None:
    """Exactly so many are allowed, and none more."""
    assert check(most, [params], [prompt]) == most
    if most:
        with pytest.raises(TooLarge, match=f"up to {most} bytes"):
            check(most - 1, [params], [prompt])


def test_all_prompts_count_together() -> None:
    """Each as it asks; vectors as well, though they wait for no room."""
    batch = [states("last"), states({"positions": [1, 2]}), {}]
    assert check(3 * ROW, batch, [5, 5, 5]) == 3 * ROW
    with pytest.raises(TooLarge) as caught:
        check(3 * ROW - 1, batch, [5, 5, 5])
    assert (caught.value.status, caught.value.field) == (413, "return_hidden_states")
    for options, width in (({}, 32), ({"encoding_format": "base64"}, 4)):
        vector = params_with({}, return_embedding=options or True)
        assert check(7 * H * width, [vector] * 7, [None] * 7) == 0
        with pytest.raises(TooLarge) as caught:
            check(7 * H * width - 1, [vector] * 7, [None] * 7)
        assert caught.value.field == "return_embedding"


def test_whoever_asks_for_nothing() -> None:
    """Is not looked at."""
    assert check(1, [{"n": "many"}], [None]) == 0


@pytest.mark.parametrize(
    ("fields", "most", "waits"),
    [
        ({"return_toploc_fingerprints": True}, (1 + 3) * 128 * 8, False),
        ({"return_row_hashes": True}, (10 + 40 - 1) * ROW, True),
        ({"return_input_ids": True, "return_output_ids": True}, 0, False),
        ({"return_hidden_states": "last", "return_toploc_fingerprints": True}, LISTED + (1 + 3) * 128 * 8, True),
    ],
)
def test_what_else_counts(fields: dict[str, Any], most: int, *, waits: bool) -> None:
    """A prompt of 10 tokens and 40 generated ones: rows that are hashed are held until then, and wait for room."""
    params = params_with({"max_new_tokens": 40}, **fields)
    assert check(most, [params], [10]) == (most if waits else 0)
    if most:
        with pytest.raises(TooLarge) as caught:
            check(most - 1, [params], [10])
        assert caught.value.field == next(iter(fields))


@pytest.mark.parametrize(
    ("small", "field"),
    [
        ({"inject": ""}, "return_embedding"),
        ({"token_ids": "{}"}, "return_toploc_fingerprints"),
    ],
)
def test_what_is_small_is_not_named(small: dict[str, str], field: str) -> None:
    """The field whose answer is too large is."""
    large = uses(params_with({}, **{field: True}))
    with pytest.raises(TooLarge) as caught:
        AnswerBudget(SHAPE, 1).check([PromptRequest({**requested(small), **large}, {}, 10)])
    assert caught.value.field == field
