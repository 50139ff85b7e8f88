"""Vectors on SGLang's own channel: what they gave is cached under no plain key while a feature of ours is on."""

from __future__ import annotations

import pytest
import torch
from sglang.srt.managers.embed_types import PositionalEmbeds

from tessera import config
from tessera_patches.http.request import GenerateReqInput


def scored() -> GenerateReqInput:
    """As /v1/score makes it."""
    vectors = PositionalEmbeds(embeds=torch.ones(1, 8), positions=[1])
    return GenerateReqInput(input_ids=[[1, 2, 3]] * 2, positional_embed_overrides=[vectors, None], extra_key="mine")


def test_nobody_else_finds_what_they_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --tile-spec, which promises nothing of vectors, and has the prefix cache."""
    monkeypatch.setattr(config, "active", config.Settings(tilespec=True))
    first, second = scored().extra_key, scored().extra_key
    assert first.startswith("mine")
    assert len({"mine", first, second}) == 3
    assert GenerateReqInput(input_ids=[1, 2, 3], extra_key="mine").extra_key == "mine"


def test_a_server_without_our_features_is_stock() -> None:
    """Nothing is changed."""
    assert scored().extra_key == "mine"


@pytest.mark.parametrize("feature", ["rows", "inject"])
def test_they_are_refused_where_rows_are_read(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Or vectors are injected: /v1/score makes a 400 of it."""
    monkeypatch.setattr(config, "active", config.Settings(**{feature: True}))
    with pytest.raises(ValueError, match="query_embed_overrides, item_embed_overrides"):
        scored()
