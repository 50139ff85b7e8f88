"""Claims, and options of fingerprints, that get a 400: each names its field, and the next good one is judged."""

from __future__ import annotations

import base64
from typing import Any

from tessera.launching.server import Server
from tessera_testing.claims import CLAIM, claim_of, generate_with_fingerprints, post, prompt_of, verdicts


def test_without_the_flags(bare: Server) -> None:
    """A server that keeps no rows names the flags."""
    body = {"text": "import os\n", "sampling_params": {"max_new_tokens": 1}}
    for name in ("return_toploc_fingerprints", "return_input_ids", "return_output_ids"):
        answer = post(bare, "/generate", body | {name: True})
        assert answer.status_code == 400
        assert "--toploc-verification" in answer.json()["error"]["message"]
        assert post(bare, "/generate", body | {name: 0}).status_code == 400
    refused = post(bare, "/v1/toploc/verify", {"claims": []})
    assert refused.status_code == 400
    assert "--toploc-verification" in refused.json()["error"]["message"]
    assert post(bare, "/generate", body | {"return_toploc_fingerprints": False}).status_code == 200


_BAD_IDS: list[Any] = [[], [-1], [1024], [2**70], ["1"], [1.5], [True], None, "text"]


_BAD_NONCES: list[Any] = ["", "n" * 129, 7, []]


def test_hostile_bodies(server: Server) -> None:
    """Each gets a 400 that names its field, and the next good claim its verdict."""
    good = claim_of(generate_with_fingerprints(server, prompt_of(30, 90), 40))
    prints = good["fingerprints"]
    sets: list[Any] = ["/9k=", ["/9k="] * 3, prints[:2], [*prints, prints[0]], [None] * 3, {}, prints * 33_334]
    singles: list[Any] = ["", "!!!!", prints[0][:-4], prints[0] + "AAAA", 7, ["x"], "A" * 344, "A" * 10_000_000]
    bad: list[dict[str, Any]] = [
        *({"fingerprints": value} for value in [*sets, *([*prints[:2], single] for single in singles)]),
        *({"input_ids": value} for value in _BAD_IDS),
        *({"output_ids": value} for value in _BAD_IDS if value != []),
        *({"nonce": value} for value in _BAD_NONCES),
        *({"sampling": value} for value in (1, {"temperature": -1}, {"top_p": "x"}, {"seed": 2**64}, {"x": 1})),
        {"input_embed_overrides": {"positions": [0], "embeds": [[0.1] * 256]}},  # not without --enable-injection
        {"model": "x"},
    ]
    for change in bad:
        answer = post(server, "/v1/toploc/verify", {"claims": [good, good | change]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(f"claims[1].{next(iter(change))}")
        assert len(answer.text) < 1000
    whole: list[Any] = [
        {},
        {"claims": []},
        {"claims": [good] * 513},
        {"claims": [1]},
        {"claims": [good], "x": 1},
        [],
        7,
    ]
    for body in whole:
        assert post(server, "/v1/toploc/verify", body).status_code == 400
    sampling = {"sampling_params": {"max_new_tokens": 0}}
    ids = {"input_ids": good["input_ids"], "output_ids": good["output_ids"]}
    for fields in (
        {**ids, **sampling, CLAIM: "/9k="},
        {**ids, **sampling, CLAIM: []},
        {**ids, **sampling, CLAIM: prints[:2]},
        {**ids, **sampling, CLAIM: good["fingerprints"], "toploc_nonce": 5},
        {**ids, CLAIM: prints},
        {**ids, **sampling},
        {"text": "x", "output_ids": [9], **sampling, CLAIM: prints[:1]},
        {"text": ["x", "y"], **sampling, CLAIM: prints[:1]},
        {"text": "x", **sampling, CLAIM: base64.b64encode(b"\xff\xd9" + bytes(64)).decode()},
        {"text": "x", **sampling, "return_toploc_fingerprints": "yes"},
        {"text": "x", **sampling, "return_input_ids": 1},
        {"text": "x", **sampling, "return_input_ids": 0},
    ):
        answer = post(server, "/generate", fields)
        assert answer.status_code == 400, fields
        assert answer.json()["error"]["code"] in ("bad_request", "bad_fingerprint")
    assert verdicts(server, good) == ["pass"]
