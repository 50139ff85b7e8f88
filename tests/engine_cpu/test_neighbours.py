"""One client's mistake beside 128 good requests: it gets its 400, and they get the answers that they get alone."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.marks import only_in_full

GOOD = 128
THREE = {"max_new_tokens": 3, "temperature": 0}
EMPTY = [[1, 2], []]
MISTAKES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/generate", {"input_ids": EMPTY, "sampling_params": THREE}),
    ("/v1/completions", {"model": "tiny", "prompt": EMPTY, "max_tokens": 3}),
    ("/generate", {"input_ids": [[], []], "sampling_params": THREE, "return_embedding": True}),
    ("/generate", {"input_ids": EMPTY, "sampling_params": THREE | {"n": 2}}),
    ("/generate", {"input_ids": EMPTY, "sampling_params": THREE, "return_embedding": {"over": "prompt"}}),
    ("/generate", {"input_ids": [5, 6], "return_logprob": True, "token_ids_logprob": [5, 5000]}),
    ("/generate", {"input_ids": [5, 6], "sampling_params": THREE | {"stop_token_ids": [-5], "min_new_tokens": 1}}),
    ("/generate", {"input_ids": [5, 6], "positional_embed_overrides": []}),
    ("/generate", {"input_ids": [5, 6], "positional_embed_overrides": [None]}),
    ("/generate", {"input_ids": [True, 99_999]}),
)


def good(i: int) -> dict[str, Any]:
    """One request: of four, one also wants an embedding, and one the log-probabilities of some ids."""
    body: dict[str, Any] = {"input_ids": [5 + i, 6, 7 + i % 3], "sampling_params": THREE}
    return body | ({}, {"return_embedding": True}, {"return_logprob": True, "token_ids_logprob": [3, 4]}, {})[i % 4]


@pytest.mark.parametrize("which", ["server", *only_in_full("fingerprinting")])
def test_a_mistake_fails_its_sender_alone(which: str, request: pytest.FixtureRequest) -> None:
    """With fingerprints of every response, and without."""
    server: Server = request.getfixturevalue(which)
    answers, refused = asyncio.run(_together(server.url))
    assert [one.status_code for one in refused] == [400] * len(MISTAKES), [one.text[:200] for one in refused]
    assert [one.status_code for one in answers] == [200] * GOOD
    found = [one.json() for one in answers]
    alone = httpx.post(f"{server.url}/generate", json=good(1), timeout=60).raise_for_status().json()
    assert found[1]["output_ids"] == alone["output_ids"]
    assert found[1]["meta_info"]["embedding"] == pytest.approx(alone["meta_info"]["embedding"], rel=1e-5, abs=1e-5)
    if which == "fingerprinting":
        assert all(one["meta_info"]["toploc_verification_fingerprints"] for one in found)


async def _together(url: str) -> tuple[list[httpx.Response], list[httpx.Response]]:
    """All at once: the answers to good requests, and those to `MISTAKES`, which come among them."""
    limits = httpx.Limits(max_connections=GOOD + len(MISTAKES))
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        every = GOOD // len(MISTAKES)
        bodies = [("/generate", good(i)) for i in range(GOOD)]
        for place, mistake in enumerate(MISTAKES):
            bodies.insert(place * (every + 1) + 1, mistake)
        answers = await asyncio.gather(*(client.post(path, json=body) for path, body in bodies))
    wrong = {place * (every + 1) + 1 for place in range(len(MISTAKES))}
    return [one for i, one in enumerate(answers) if i not in wrong], [answers[i] for i in sorted(wrong)]
