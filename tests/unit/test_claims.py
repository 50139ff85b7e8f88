"""``/v1/toploc/verify`` without an engine: what is bounded."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tessera import carry, config
from tessera.capabilities.fingerprints import claims
from tessera.capabilities.fingerprints.options import FingerprintOptions, ToplocVerifyRequest
from tessera.errors import BadRequest
from tessera.fields import read
from tessera.limits import MAX_SAMPLED_TOKENS

CLAIM = {"input_ids": [1], "output_ids": [2] * 8192, "row_hashes": ["0" * 64] * 257, "sampling": {"seed": 3}}
SAMPLINGS = [{"temperature": 0}, {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3}]


class Body:
    """A request with these claims."""

    def __init__(self, *values: Any) -> None:
        self._content = json.dumps({"claims": values}).encode()

    async def stream(self) -> AsyncIterator[bytes]:
        """In one piece."""
        yield self._content


def verify(*values: Any, chat: claims.Chat | claims.Unverifiable | None = None) -> Any:
    """With an engine that can verify nothing, and a tokenizer that knows one chat."""

    async def prefill(found: list[claims.Claim]) -> list[dict[str, Any] | claims.Unverifiable]:
        return [claims.Unverifiable("no engine")] * len(found)

    return asyncio.run(
        claims.verify(Body(*values), prefill, lambda *_: chat or claims.Unverifiable("no chat"), 256, 1024)
    )


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes row hashes."""
    settings = config.Settings(rows=True, deterministic=True, hidden_size=256, vocabulary=1024)
    monkeypatch.setattr(config, "active", settings)


def test_tokens_that_are_generated_again_are_bounded() -> None:
    """Each takes a step."""
    assert MAX_SAMPLED_TOKENS == 4 * 8192
    assert [one["verdict"] for one in verify(*[CLAIM] * 4)["results"]] == ["unverifiable"] * 4
    with pytest.raises(BadRequest, match="claims: got 32769 tokens with sampling; allowed: at most 32768"):
        verify(*[CLAIM] * 4, {**CLAIM, "output_ids": [2], "row_hashes": ["0" * 64]})


@pytest.mark.parametrize("sampling", [None, {}, {"temperature": 0.7}, {"temperature": 1, "seed": None}])
def test_what_cannot_be_generated_again_is_no_exact_claim(sampling: Any) -> None:
    """A draw without its seed."""
    with pytest.raises(BadRequest, match=r"claims\[0\]\.sampling: .* beside row_hashes temperature 0 or a seed"):
        verify({**CLAIM, "sampling": sampling})


def test_how_a_response_is_generated_again() -> None:
    """As its prover says, as many tokens, whatever ends a response."""
    requested = read({"claims": [{**CLAIM, "sampling": one} for one in SAMPLINGS]}, ToplocVerifyRequest)
    found = [claims.read_claim("c", one, 256, 1024) for one in requested.claims]
    assert [claim.tokens for claim in found] == [[1], [1]]
    greedy, seeded = ({**claim.params, "custom_params": None} for claim in found)
    common = {"max_new_tokens": 8192, "ignore_eos": True, "custom_params": None}
    assert greedy == {"temperature": 0, "top_p": 1, "top_k": -1, **common}
    assert seeded == {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "sampling_seed": 3, **common}


@pytest.mark.parametrize(
    ("output_ids", "row_hashes", "reason"),
    [
        ([5, 6], ["aa", "bb"], ""),
        ([5, 6], ["AA", "BB"], ""),
        ([5, 7], ["aa", "bb"], "output_ids: generated again, token 1 is 6"),
        ([5, 6, 7], ["aa", "bb"], "output_ids: generated again, there are 2 tokens"),
        ([5, 6], ["aa", "ba"], "row_hashes: the rows differ in chunk 1"),
    ],
)
def test_what_did_not_come_again(output_ids: list[int], row_hashes: list[str], reason: str) -> None:
    """The first difference is named."""
    again = {"output_ids": [5, 6], "row_hashes": ["aa", "bb"]}
    assert claims.Response(output_ids, row_hashes).difference(again) == reason


@pytest.mark.parametrize(
    ("ids", "place"),
    [([True], 0), ([1.0], 0), ([1, 1024], 1), ([1, -1], 1), ([1, "1"], 1), ([1, None], 1), ([1, [2]], 1)],
)
def test_a_bad_token_id_is_named(ids: list[Any], place: int) -> None:
    """By its place."""
    with pytest.raises(BadRequest) as refusal:
        verify({**CLAIM, "input_ids": ids})
    assert refusal.value.field == f"claims[0].input_ids[{place}]"


FINGERPRINT = base64.b64encode(b"\xff\xd9" + bytes(256)).decode()
CHAT = {"messages": [{"role": "user", "content": "x"}], "fingerprints": [FINGERPRINT] * 2}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *(({name: value}, name) for name, value in CLAIM.items()),
        ({"input_embed_overrides": []}, "input_embed_overrides"),
        ({"fingerprints": None}, "fingerprints"),
        ({"fingerprints": FINGERPRINT}, "fingerprints"),
        ({"fingerprints": [FINGERPRINT, "AAAA"]}, "fingerprints[1]"),
        ({"nonce": ""}, "nonce"),
        ({"messages": None, "input_ids": [1], "output_ids": [], "tools": []}, "tools"),
        ({"messages": None, "input_ids": [1], "output_ids": [], "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"messages": None}, "input_ids"),
    ],
)
def test_a_malformed_claim_with_messages_is_refused(change: dict[str, Any], field: str) -> None:
    """By its field, whether its tokens are known or not."""
    for chat in (claims.Unverifiable("an image"), claims.Chat([1, 2, 3, 4], 3)):
        with pytest.raises(BadRequest) as refusal:
            verify(CLAIM, CHAT | change, chat=chat)
        assert refusal.value.field == f"claims[1].{field}"


def test_a_claim_whose_tokens_are_not_known() -> None:
    """It has the reason, in its place; its neighbours are run."""
    results = verify(CLAIM, CHAT, CLAIM, chat=claims.Unverifiable("an image"))["results"]
    assert [one["verdict"] for one in results] == ["unverifiable"] * 3
    assert [one["reason"] for one in results] == ["no engine", "an image", "no engine"]


@pytest.mark.parametrize(("answer", "fits"), [(0, False), (1, True), (2, True), (33, True), (34, False)])
def test_a_text_that_is_tokenized_otherwise(answer: int, fits: bool) -> None:
    """Of so many tokens, the last of which may have been fed back, two fingerprints can be; else no verdict."""
    chat = claims.Chat([1] * (4 + answer), answer)
    (result,) = verify(CHAT, chat=chat)["results"]
    assert result["verdict"] == "unverifiable"
    expected = "no engine" if fits else f"the last message has {answer} tokens, whose fingerprints are others"
    assert result["reason"].startswith(expected)


def test_what_a_claim_with_messages_carries() -> None:
    """Its tokens whole: the prover may have fed back the last one or not."""
    (requested,) = read({"claims": [{**CHAT, "nonce": "n", "lora_path": "a"}]}, ToplocVerifyRequest).claims
    claim = claims.read_chat("c", requested, 256, lambda *_: claims.Chat([1, 2, 3, 4], 3))
    assert isinstance(claim, claims.Claim)
    assert (claim.tokens, claim.prompt_tokens, claim.values, claim.lora_path) == ([1, 2, 3, 4], 1, [128, 128], "a")
    carried = carry.take(claim.params)
    options = msgspec.json.decode(carried.wires["fingerprints"], type=FingerprintOptions)
    assert (carried.tail, options.tail, options.either_end, options.nonce) == (3, 3, True, "n")
