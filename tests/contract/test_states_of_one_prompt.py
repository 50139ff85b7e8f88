"""A list of ``return_hidden_states`` that does not fit the prompts is refused under its own name."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import config
from tessera.errors import BadRequest
from tessera_patches.http.request import GenerateReqInput

ONE: dict[str, Any] = {"text": "a"}
IDS: dict[str, Any] = {"input_ids": [5, 6]}
TWO: dict[str, Any] = {"text": ["a", "b"]}


@pytest.mark.parametrize(
    ("prompts", "value"), [(ONE, [True]), (ONE, []), (IDS, [True]), (TWO, [True]), (TWO, []), (TWO, [True] * 3)]
)
def test_the_message_names_the_field(
    monkeypatch: pytest.MonkeyPatch, prompts: dict[str, Any], value: list[Any]
) -> None:
    """Not ``sampling_params``, into which it is written for the scheduler."""
    monkeypatch.setattr(config, "active", config.Settings(rows=True))
    with pytest.raises(BadRequest) as refused:
        GenerateReqInput(**prompts, return_hidden_states=value)
    assert refused.value.field == "return_hidden_states"
    assert f"a list of {len(value)}" in str(refused.value)
    GenerateReqInput(**TWO, return_hidden_states=[True, False])
