"""Which adapter a request names."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.errors import BadRequest
from tessera.http.adapters import check_batch, of_openai

LOADED = {"own": 1, "b:c": 2}


@pytest.mark.parametrize(
    ("model", "path", "name"),
    [
        ("served:8b", None, None),
        ("served:8b", "", None),
        ("any:own", "", "own"),
        ("served:8b", "own", "own"),
        ("any:own", None, "own"),
        ("any: own ", "b:c", "own"),
        ("any:b:c", None, "b:c"),
        ("any:", "own", "own"),
        (None, None, None),
        (["any:own"], None, None),
    ],
)
def test_openai(model: object, path: object, name: str | None) -> None:
    """The first colon ends the model's name, as on SGLang's routes; the served name may have one itself."""
    assert of_openai(model, path, "served:8b", LOADED) == name


@pytest.mark.parametrize(
    ("model", "path"), [("any:x", None), ("own", None), ("any", "x"), ("any:own", "x"), ("any", 5)]
)
def test_openai_refusals(model: object, path: object) -> None:
    """Of what is not loaded, and of an adapter's name where the model's belongs."""
    with pytest.raises(BadRequest):
        of_openai(model, path, "served", LOADED)


@pytest.mark.parametrize(
    ("value", "prompts"), [(None, None), ("", None), ("", 2), ("a", None), ("a", 3), ([None, "a"], 2), ([], 0)]
)
def test_batches(value: Any, prompts: int | None) -> None:
    """One name for all, where an empty one is none as on SGLang's routes, or one for each."""
    check_batch(value, prompts)


@pytest.mark.parametrize(
    ("value", "prompts"), [(["a"], None), (["a"], 2), (["a", ""], 2), (["a", 5], 2), (5, None), ({"a": 1}, 1)]
)
def test_batches_of_a_wrong_shape(value: Any, prompts: int | None) -> None:
    """SGLang's scheduler would end."""
    with pytest.raises(BadRequest, match="lora_path"):
        check_batch(value, prompts)
