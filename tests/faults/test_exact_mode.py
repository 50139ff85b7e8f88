"""Exact mode: hashes of rows, and claims that are held to them bit by bit.

SGLang refuses ``--enable-deterministic-inference`` on a CPU: it wants another attention backend, and its kernels that
give the same bits in any batch need a GPU. So this server runs without it, and only our part believes that it is there
(`site/sitecustomize.py`). Its rows are the same bits when the same response is generated alone, with nothing cached.
Batches are tested on a GPU, in ``tests/gpu/test_toploc.py``.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
from typing import Any

import httpx

from tessera.launching.server import Server
from tessera_testing.endpoints import flush_cache

PROMPT_TOKENS, GENERATED = 50, 71
GREEDY = {"temperature": 0}


def tokens() -> list[int]:
    """Prompt and response."""
    chooser = random.Random("exact")
    return [chooser.randrange(8, 1000) for _ in range(PROMPT_TOKENS + GENERATED)]


def post(server: Server, path: str, body: Any) -> Any:
    """One request, with nothing cached."""
    flush_cache(server)
    return httpx.post(server.url + path, json=body, timeout=120).raise_for_status().json()


def prefill(server: Server, ids: list[int], **fields: Any) -> Any:
    """``meta_info``."""
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, **fields}
    return post(server, "/generate", body)["meta_info"]


def chain(rows: list[bytes], head: bytes, edges: list[int]) -> list[str]:
    """The digests by their definition: each over the one before it and the rows of its chunk."""
    digest, found = hashlib.sha256(head).digest(), []
    for start, end in itertools.pairwise(edges):
        digest = hashlib.sha256(digest + b"".join(rows[start:end])).digest()
        found.append(digest.hex())
    return found


def result(server: Server, claim: Any) -> tuple[str, str]:
    """Verdict and reason."""
    (found,) = post(server, "/v1/toploc/verify", {"claims": [claim]})["results"]
    return found["verdict"], found["reason"]


def test_row_hashes(failing: Server) -> None:
    """Of the raw rows, bit by bit: one flipped bit is found, in its chunk; another token, by its place."""
    prompt = tokens()[:PROMPT_TOKENS]
    sampling = {"max_new_tokens": GENERATED, "temperature": 0, "ignore_eos": True}
    requested = {"return_hidden_states": True, "hidden_states_format": "base64", "return_output_ids": True}
    meta = post(failing, "/generate", {"input_ids": prompt, "sampling_params": sampling, **requested})["meta_info"]
    count, width = meta["hidden_states"]["shape"]
    content = base64.b64decode(meta["hidden_states"]["data"])
    rows = [content[i * width * 4 : (i + 1) * width * 4] for i in range(count)]
    head, edges = b"tessera rows 1 float32 256", [0, 50, 82, 114, 120]
    hashes = chain(rows, head, edges)
    claim = {"input_ids": prompt, "output_ids": meta["output_ids"], "row_hashes": hashes, "sampling": GREEDY}
    assert result(failing, claim) == ("pass", "")
    assert result(failing, claim | {"row_hashes": [one.upper() for one in hashes]}) == ("pass", "")

    flipped = bytearray(rows[90])
    flipped[0] ^= 1
    almost = chain([*rows[:90], bytes(flipped), *rows[91:]], head, edges)
    assert (almost[:2], almost[2] != hashes[2], almost[3] != hashes[3]) == (hashes[:2], True, True)
    assert result(failing, claim | {"row_hashes": almost}) == ("fail", "row_hashes: the rows differ in chunk 2")
    swapped = [hashes[0], hashes[2], hashes[1], hashes[3]]
    assert result(failing, claim | {"row_hashes": swapped}) == ("fail", "row_hashes: the rows differ in chunk 1")
    right = meta["output_ids"][-20]
    another = [*meta["output_ids"][:-20], right ^ 1, *meta["output_ids"][-19:]]
    reason = f"output_ids: generated again, token {GENERATED - 20} is {right}"
    assert result(failing, claim | {"output_ids": another}) == ("fail", reason)
    longer = prompt[1:]
    assert result(failing, claim | {"input_ids": longer})[0] == "fail"


def test_the_next_turn_of_a_chat(failing: Server) -> None:
    """Its prompt lies in the cache, where decoding left it, and is computed anew: so the claim holds anywhere."""
    sampling = {"max_new_tokens": 20, **GREEDY, "ignore_eos": True}
    prompt = [*tokens()[:20], 9]
    first = post(failing, "/generate", {"input_ids": prompt, "sampling_params": sampling, "return_embedding": True})
    turn = [*prompt, *first["output_ids"], 11]
    requested = {"return_row_hashes": True, "return_output_ids": True}
    body = {"input_ids": turn, "sampling_params": sampling, **requested}
    answer = httpx.post(f"{failing.url}/generate", json=body, timeout=60).raise_for_status().json()["meta_info"]
    assert answer["cached_tokens"] == 0
    claim = {"input_ids": turn, "output_ids": answer["output_ids"], "row_hashes": answer["row_hashes"]}
    assert result(failing, claim | {"sampling": GREEDY}) == ("pass", "")


def test_a_request_for_hashes(failing: Server) -> None:
    """The same hashes come with a response, streamed or not, beside fingerprints or alone; its claim passes."""
    prompt = tokens()[:PROMPT_TOKENS]
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1, **GREEDY}, "return_row_hashes": True}
    requested = {"return_input_ids": True, "return_output_ids": True, "return_toploc_fingerprints": True}
    meta = post(failing, "/generate", body | requested)["meta_info"]
    assert "hidden_states" not in meta
    ids = {name: meta[name] for name in ("input_ids", "output_ids")}
    assert result(failing, {**ids, "row_hashes": meta["row_hashes"], "sampling": GREEDY}) == ("pass", "")
    assert result(failing, {**ids, "fingerprints": meta["toploc_verification_fingerprints"]}) == ("pass", "")
    assert prefill(failing, prompt, return_row_hashes=True)["row_hashes"] == meta["row_hashes"]
    flush_cache(failing)
    streamed = httpx.post(f"{failing.url}/generate", json=body | {"stream": True}, timeout=60).raise_for_status().text
    assert meta["row_hashes"][0] in streamed


def test_bad_hashes(failing: Server) -> None:
    """A 400 that names the field; the next good claim has its verdict."""
    ids = tokens()
    good = {"input_ids": ids[:PROMPT_TOKENS], "output_ids": ids[PROMPT_TOKENS:], "sampling": GREEDY}
    hashes = ["0" * 64] * 4
    bad: list[Any] = ["0" * 64, [], hashes[:3], [*hashes, hashes[0]], [*hashes[:3], "0" * 63], [7] * 4, {}]
    for value in bad:
        body: Any = {"claims": [good | {"row_hashes": value}]}
        answer = httpx.post(f"{failing.url}/v1/toploc/verify", json=body, timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "claims[0].row_hashes")
    for also in ({"fingerprints": ["/9k="]}, {"nonce": "n"}, {"sampling": None}, {"sampling": {"temperature": 1}}):
        body = {"claims": [good | {"row_hashes": hashes} | also]}
        assert httpx.post(f"{failing.url}/v1/toploc/verify", json=body, timeout=60).status_code == 400
    body = {"input_ids": [9], "sampling_params": {"max_new_tokens": 1}, "return_row_hashes": True}
    refused = httpx.post(f"{failing.url}/generate", json=body | {"return_hidden_states": True}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "return_row_hashes")
    assert result(failing, good | {"row_hashes": hashes})[0] == "fail"
