"""Responses with fingerprints, and the claims that a verifier is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx

from tessera.launching.server import Server
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import fresh_prompt, generate

prompt_of = partial(fresh_prompt, "toploc")

# Spelled as clients spell them.
FINGERPRINTS = "toploc_verification_fingerprints"
RESULT = "toploc_verification_fingerprint_validation_result"
CLAIM = "toploc_verification_fingerprint_to_validate"


def post(server: Server, path: str, body: Any) -> httpx.Response:
    """One request."""
    return httpx.post(server.url + path, json=body, timeout=120)


def generate_with_fingerprints(server: Server, prompt: list[int], tokens: int = 70, **fields: Any) -> Any:
    """``meta_info`` of a greedy answer with fingerprints and all ids."""
    requested = {"return_toploc_fingerprints": True, "return_input_ids": True, "return_output_ids": True}
    return generate(server, prompt, tokens, **(requested | fields))["meta_info"]


def claim_of(meta: Any, **changes: Any) -> Any:
    """What ``/v1/toploc/verify`` takes."""
    return {
        "input_ids": meta["input_ids"],
        "output_ids": meta["output_ids"],
        "fingerprints": meta[FINGERPRINTS],
    } | changes


def verdicts(server: Server, *claims: Any) -> list[str]:
    """In the order of the claims."""
    answer = post(server, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()
    return [result["verdict"] for result in answer["results"]]


def prove_and_verify(server: Server, prompts: Sequence[list[int]]) -> list[Any]:
    """Claims of all pass once the cache is empty, and one with another's fingerprints fails. Four are made at a time.

    Returns:
        ``meta_info`` of each answer.
    """
    with ThreadPoolExecutor(4) as threads:
        metas = list(threads.map(lambda prompt: generate_with_fingerprints(server, prompt), prompts))
    flush_cache(server)
    claims = [claim_of(meta) for meta in metas]
    wrong = {**claims[-1], "fingerprints": claims[-2]["fingerprints"]}
    found = verdicts(server, *claims, wrong)
    assert found == ["pass"] * len(claims) + ["fail"], found
    return metas
