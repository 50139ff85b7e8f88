"""``/v1/toploc/verify`` without an engine: what is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera import config
from tessera.capabilities.fingerprints import claims
from tessera.capabilities.fingerprints.options import ToplocVerifyRequest
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


def verify(*values: Any) -> Any:
    """With an engine that can verify nothing."""

    async def prefill(found: list[claims.Claim]) -> list[dict[str, Any] | claims.Unverifiable]:
        return [claims.Unverifiable("no engine")] * len(found)

    return asyncio.run(claims.verify(Body(*values), prefill, 256, 1024))


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
