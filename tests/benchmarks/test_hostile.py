"""The campaign's bodies, and its judgement of answers with status 200."""

from __future__ import annotations

import json
import random

import pytest

from hostile.bodies import ROUTES, hostile
from hostile.dropped import dropped


def test_a_seed_sends_the_same_bodies_to_every_route() -> None:
    """And another seed others."""
    sent = [[hostile(chooser) for _ in range(3000)] for chooser in map(random.Random, (1, 1, 2))]
    assert sent[0] == sent[1] != sent[2]
    assert {one.path for one in sent[0]} == {route.path for route in ROUTES}


@pytest.mark.parametrize(
    ("path", "body", "answer", "missing"),
    [
        ("/generate", {"return_embedding": True}, '{"meta_info":{}}', "return_embedding"),
        ("/generate", {"return_embedding": {}}, '{"meta_info":{"embedding":[1.0]}}', ""),
        ("/generate", {"return_embedding": True}, 'data: {"error":{}}', ""),
        ("/generate", {"return_embedding": True}, '{"meta_info":{"rows_unavailable":"none: why"}}', ""),
        ("/generate", {"return_hidden_states": [False, None]}, "{}", ""),
        ("/generate", {"input_embed_overrides": [[]]}, "{}", ""),
        ("/generate", {"return_input_ids": 0}, "{}", "return_input_ids"),
        ("/vertex_generate", {"parameters": {"return_output_ids": True}}, "[]", "return_output_ids"),
        ("/api/chat", {"toploc_nonce": "a"}, "{}", "toploc_nonce"),
        ("/api/chat", {"toploc_nonce": None}, "{}", ""),
        ("/tokenize", {"return_embedding": True}, "{}", ""),
    ],
)
def test_what_was_asked_for_and_dropped(path: str, body: object, answer: str, missing: str) -> None:
    """By the route, the field's value and the answer."""
    assert dropped(path, json.dumps(body), answer) == missing
