"""How large an answer can be at most, by hand, and what is refused for it."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.admission import admit_embedding, admit_states
from tessera.answer_bytes import AnswerBudget, Shape
from tessera.errors import TooLarge

H = 64
SHAPE = Shape(hidden_size=H, value_bytes=2, context=100, topk=128)
ROW, LISTED = H * 2, H * 32


def states(value: object, form: str = "base64", **params: object) -> dict[str, Any]:
    """Sampling parameters of a request for raw states."""
    found = admit_states(value, form, params)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("params", "prompt", "wanted"),
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
def test_bytes(params: dict[str, Any], prompt: int | None, wanted: int) -> None:
    """Exactly so many are allowed, and none more."""
    assert AnswerBudget(SHAPE, wanted).check([params], [prompt]) == wanted
    if wanted:
        with pytest.raises(TooLarge, match=f"up to {wanted} bytes"):
            AnswerBudget(SHAPE, wanted - 1).check([params], [prompt])


def test_all_prompts_count_together() -> None:
    """Each as it asks; vectors as well, though they wait for no room."""
    batch = [states("last"), states({"positions": [1, 2]}), {}]
    assert AnswerBudget(SHAPE, 3 * ROW).check(batch, [5, 5, 5]) == 3 * ROW
    with pytest.raises(TooLarge) as caught:
        AnswerBudget(SHAPE, 3 * ROW - 1).check(batch, [5, 5, 5])
    assert (caught.value.status, caught.value.field) == (413, "return_hidden_states")
    for options, width in (({}, 32), ({"encoding_format": "base64"}, 4)):
        vector = admit_embedding(options or True, {}, enabled=True, hidden_size=H)
        assert AnswerBudget(SHAPE, 7 * H * width).check([vector] * 7, [None] * 7) == 0
        with pytest.raises(TooLarge) as caught:
            AnswerBudget(SHAPE, 7 * H * width - 1).check([vector] * 7, [None] * 7)
        assert caught.value.field == "return_embedding"


def test_whoever_asks_for_nothing() -> None:
    """Is not looked at."""
    assert AnswerBudget(SHAPE, 1).check([{"n": "many"}], [None]) == 0
