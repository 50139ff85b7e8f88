"""Hostile fingerprints over HTTP, to ``/v1/toploc/verify`` and inside requests: each is refused or gets a verdict.

None ends or hangs the server, and after each block of them a good claim passes and a false one fails. The first are
those that end the process of the ``toploc`` library. ``TESSERA_FUZZ_BODIES=10000`` runs the full number (with
``--timeout=3600``: ten minutes on two busy cores); CI runs fewer.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing.hostile_claims import CRASHING, JUNK, known_claims, mutated, random_claim
from tessera_testing.tally import Tally

BODIES = int(os.environ.get("TESSERA_FUZZ_BODIES", "300"))
BLOCK = 50
MOST_SECONDS = 20
FIELD = "toploc_verification_fingerprint_to_validate"
VERIFY = "/v1/toploc/verify"
MESSAGES = [{"role": "user", "content": "class Stack:"}, {"role": "assistant", "content": "\n    def __init__(self):"}]

RAW: list[bytes] = [
    *(b"", b"x", b"{", b"null", b"[]", b'"x"', b"7", b"\xff\xfe", b"\xef\xbb\xbf{}", b"\x00" * 1000, b"{}" * 1000),
    *(b"[" * 100_000, b'{"claims":' * 100_000, b'{"claims": [' + b"[" * 100_000, b'{"claims": [' + b"{}," * 100_000),
    *(b'{"claims": [NaN]}', b'{"claims": [1e999]}', b'{"claims": [' + b"9" * 100_000 + b"]}", b'{"claims": "\xff"}'),
    b'{"claims": [{"input_ids": [' + b"1," * 5_000_000 + b'1], "output_ids": [1], "fingerprints": ["/9k="]}]}',
    b'{"claims": [{"\\ud800": 1}]}',
    b'{"claims": [], "claims": [{}]}',
]
"""Bodies that are no claims, some not even JSON."""


@pytest.fixture
def good(injecting: Server) -> dict[str, Any]:
    """An honest claim."""
    body = {
        "input_ids": list(range(200, 250)),
        "sampling_params": {"max_new_tokens": 70, "temperature": 0, "ignore_eos": True},
        "return_toploc_fingerprints": True,
        "return_input_ids": True,
        "return_output_ids": True,
    }
    answer = httpx.post(f"{injecting.url}/generate", json=body, timeout=120).raise_for_status()
    meta = answer.json()["meta_info"]
    ids = {name: meta[name] for name in ("input_ids", "output_ids")}
    return {**ids, "fingerprints": meta["toploc_verification_fingerprints"]}


def inside(path: str, good: dict[str, Any], claim: Any) -> dict[str, Any]:
    """A body for a route that generates, with something to validate."""
    if path == "/generate":
        ids = {name: good[name] for name in ("input_ids", "output_ids")}
        return {**ids, "sampling_params": {"max_new_tokens": 0}, FIELD: claim}
    if path == "/v1/completions":
        ids = {"prompt": good["input_ids"], "output_ids": good["output_ids"]}
        return {**ids, "model": "tiny", "max_tokens": 0, FIELD: claim}
    return {"messages": MESSAGES, "model": "tiny", "max_tokens": 0, FIELD: claim}


def send(client: httpx.Client, path: str, content: bytes, good: dict[str, Any], tally: Tally) -> None:
    """One body: a 4xx with a reason, or a verdict, and never a pass for other fingerprints."""
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    shown = f"{path} {content[:300]!r} -> {answer.text[:300]}"
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, shown
    assert len(answer.content) < 10_000, shown
    if answer.status_code != 200:
        returned = answer.json()
        assert returned.get("error", returned)["message"], shown
        tally.add(answer)
    elif path == VERIFY:
        claims = json.loads(content)["claims"]
        verdicts = [result["verdict"] for result in answer.json()["results"]]
        assert "unverifiable" not in verdicts, shown  # nothing is wrong with this engine: an error was taken for that
        for claim, verdict in zip(claims, verdicts, strict=True):
            assert verdict != "pass" or claim["fingerprints"] == good["fingerprints"], shown
        tally.add(answer, " ".join(sorted(set(verdicts))))
    else:
        assert "validation_result" in answer.text, shown
        tally.add(answer, "validated")


def check(client: httpx.Client, good: dict[str, Any]) -> None:
    """A good claim passes, and one whose last fingerprint is another's fails."""
    prints = good["fingerprints"]
    false = {**good, "fingerprints": [*prints[:-1], prints[1]]}
    answer = client.post(VERIFY, json={"claims": [good, false]}).raise_for_status().json()
    assert [result["verdict"] for result in answer["results"]] == ["pass", "fail"]


def encoded(value: Any) -> bytes:
    """JSON, and what Python writes where JSON has nothing: NaN."""
    return json.dumps(value).encode()


def test_known_bodies(injecting: Server, good: dict[str, Any], tally: Tally) -> None:
    """What ends the library first, then large ones, junk, and what is no claim at all."""
    strings = [*CRASHING, good["fingerprints"][:-1], [], *([one] for one in CRASHING), *JUNK]
    strings += ["A" * 10_000_000, [good["fingerprints"][0]] * 100_000, [CRASHING[0]] * 100_000]
    with httpx.Client(base_url=injecting.url, timeout=MOST_SECONDS) as client:
        for number, claim in enumerate(known_claims(good)):
            send(client, VERIFY, encoded({"claims": [good, claim] if number % 2 else [claim]}), good, tally)
            if number % BLOCK == 0:
                check(client, good)
        check(client, good)
        for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            for value in strings:
                if value is not None:  # that is none to validate
                    send(client, path, encoded(inside(path, good, value)), good, tally)
            check(client, good)
        for content in RAW:
            send(client, VERIFY, content, good, tally)
            check(client, good)


def test_random_bodies(injecting: Server, good: dict[str, Any], tally: Tally) -> None:
    """The same ones every time."""
    chooser = random.Random(5)
    with httpx.Client(base_url=injecting.url, timeout=MOST_SECONDS) as client:
        for number in range(BODIES):
            path = chooser.choice([VERIFY, VERIFY, "/generate", "/v1/completions", "/v1/chat/completions"])
            if path == VERIFY:
                claims = [random_claim(chooser, good) for _ in range(chooser.choice([1, 1, 2, 8]))]
                sent: Any = {"claims": claims}
            else:
                claim = [mutated(chooser) if chooser.random() < 0.3 else one for one in good["fingerprints"]]
                value = chooser.choice([claim, claim[-1], mutated(chooser)])
                sent = inside(path, good, "" if value is None else value)  # null is none to validate
            send(client, path, encoded(sent), good, tally)
            if number % BLOCK == BLOCK - 1:
                check(client, good)
        assert client.post("/flush_cache?timeout=30").status_code == 200  # only a server that holds no request does it
