"""``/v1/toploc/verify`` without an engine: what is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera import config
from tessera.errors import BadRequest
from tessera.http import claims
from tessera.http.claims import Unverifiable
from tessera.limits import MAX_SAMPLED_TOKENS

CLAIM = {"input_ids": [1], "output_ids": [2] * 8193, "row_hashes": ["0" * 64] * 257, "sampling": {}}


class Body:
    """A request with these claims."""

    def __init__(self, *values: Any) -> None:
        self._content = json.dumps({"claims": values}).encode()

    async def stream(self) -> AsyncIterator[bytes]:
        """In one piece."""
        yield self._content


def verify(*values: Any) -> Any:
    """With an engine that can verify nothing."""

    async def prefill(found: list[claims.Claim]) -> list[dict[str, Any] | Unverifiable]:
        return [Unverifiable("no engine")] * len(found)

    return asyncio.run(claims.verify(Body(*values), prefill, 256, 1024))


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes row hashes."""
    settings = config.Settings(rows=True, deterministic=True, hidden_size=256, vocabulary=1024)
    monkeypatch.setattr(config, "active", settings)


def test_tokens_whose_sampling_is_checked_are_bounded() -> None:
    """Each holds memory and takes time; without ``sampling`` there may be more."""
    assert MAX_SAMPLED_TOKENS == 4 * 8192
    assert [one["verdict"] for one in verify(*[CLAIM] * 4)["results"]] == ["unverifiable"] * 4
    with pytest.raises(BadRequest, match="claims: got '32769 tokens with sampling'; allowed: at most 32768"):
        verify(*[CLAIM] * 4, {**CLAIM, "output_ids": [2, 2], "row_hashes": ["0" * 64] * 2})
    plain = {name: value for name, value in CLAIM.items() if name != "sampling"}
    assert len(verify(*[CLAIM] * 4, plain)["results"]) == 5


@pytest.mark.parametrize(
    ("ids", "place"),
    [([True], 0), ([1.0], 0), ([1, 1024], 1), ([1, -1], 1), ([1, "1"], 1), ([1, None], 1), ([1, [2]], 1)],
)
def test_a_bad_token_id_is_named(ids: list[Any], place: int) -> None:
    """By its place."""
    with pytest.raises(BadRequest) as refusal:
        verify({**CLAIM, "input_ids": ids})
    assert refusal.value.field == f"claims[0].input_ids[{place}]"
