"""Claims near the end of the context, of prompts that were cut, of sessions, and of prompts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tessera.cli import main
from tessera.client import Claim, Client
from tessera.launching.server import Server
from tessera_testing.claims import (
    CLAIM,
    FINGERPRINTS,
    RESULT,
    claim_of,
    generate_with_fingerprints,
    post,
    prompt_of,
    verdicts,
)
from tessera_testing.reference import HuggingFace, relative_error

WIDE = 4096
"""The context of `server`; that of `narrow` is 64."""
CUT = 58
"""What is left of a longer prompt on `narrow`."""
ROOM = 61
"""The most rows of a response there: SGLang ends a request at 62 tokens, and the last one has no row."""
FLOAT32_ERROR = 1e-5
MESSAGES = [{"role": "user", "content": "x"}]


def results(server: Server, *claims: Any) -> Any:
    """Verdict and reason of each."""
    answer = post(server, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()
    return [(result["verdict"], result["reason"]) for result in answer["results"]]


def inside(server: Server, meta: Any) -> Any:
    """The claim as a request of ``/generate``."""
    body = {"input_ids": meta["input_ids"], "output_ids": meta["output_ids"], CLAIM: meta[FINGERPRINTS]}
    return post(server, "/generate", body | {"sampling_params": {"max_new_tokens": 0}})


def worst(answer: Any) -> int:
    """The most exponents that differ, of all fingerprints."""
    found = json.loads(answer.raise_for_status().json()["meta_info"][RESULT])
    return max(int(one["exp_mismatches"]) for one in found)


@pytest.mark.parametrize(
    ("prompt", "requested", "tokens"), [(50, 4, 4), (56, 4, 4), (56, 8, 6), (57, 99, 5), (30, 99, 32)]
)
def test_a_response_that_fills_the_context(narrow: Server, prompt: int, requested: int, tokens: int) -> None:
    """Its claim, which is longer than any prompt that SGLang answers, is neither cut nor refused."""
    meta = generate_with_fingerprints(narrow, prompt_of(prompt, 700 + prompt + requested), requested)
    assert (len(meta["input_ids"]), len(meta["output_ids"])) == (prompt, tokens)
    again = claim_of(meta, sampling={"temperature": 0})
    other = claim_of(meta, input_ids=prompt_of(prompt, 1))
    for _ in range(2):
        assert verdicts(narrow, claim_of(meta), again, other) == ["pass", "pass", "fail"]
        assert worst(inside(narrow, meta)) <= 8
        post(narrow, "/flush_cache", {}).raise_for_status()


@pytest.mark.parametrize(("prompt", "tokens"), [(58, 4), (60, 2), (64, 0), (70, 0)])
def test_a_prompt_that_is_cut(narrow: Server, hf: HuggingFace, prompt: int, tokens: int) -> None:
    """``return_input_ids`` has what the model read, and a claim of it passes; from ids, in a batch and from a text."""
    ids = prompt_of(prompt, 710 + prompt)
    meta = generate_with_fingerprints(narrow, ids, 8, return_embedding=True)
    assert (meta["input_ids"], len(meta["output_ids"])) == (ids[:CUT], tokens)
    assert relative_error(meta["embedding"], hf.states(ids[:CUT]).mean(0)) <= FLOAT32_ERROR
    both = [one["meta_info"] for one in generate_batch(narrow, [ids, ids[:20]])]
    assert [one["input_ids"] for one in both] == [ids[:CUT], ids[:20]]
    assert verdicts(narrow, *map(claim_of, (meta, *both))) == ["pass"] * 3
    assert worst(inside(narrow, meta)) <= 8


def generate_batch(server: Server, prompts: list[list[int]]) -> Any:
    """Answers of two tokens, with fingerprints and ids."""
    requested = {"return_input_ids": True, "return_output_ids": True}
    sampling = {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}
    return post(server, "/generate", {"input_ids": prompts, "sampling_params": sampling, **requested}).json()


def test_a_text_that_is_cut(narrow: Server) -> None:
    """On OpenAI's route."""
    text = "def push(self, item): return item\n" * 20
    body = {"prompt": text, "model": "", "max_tokens": 2, "return_input_ids": True, "return_output_ids": True}
    choice = post(narrow, "/v1/completions", body).raise_for_status().json()["choices"][0]
    assert len(choice["input_ids"]) == CUT
    assert verdicts(narrow, claim_of(choice)) == ["pass"]


def test_claims_that_are_too_long(narrow: Server) -> None:
    """Are unverifiable, with both numbers, in the place of a verdict on what is left of them; others are verified."""
    meta = generate_with_fingerprints(narrow, prompt_of(56, 720), 6)
    ids = prompt_of(60, 721)
    rows = claim_of(meta, input_ids=[*ids, 9, 9])  # 62 and 5
    (long, good) = results(narrow, rows, claim_of(meta))
    assert long == (
        "unverifiable",
        f"the claim has 67 tokens to run, and the context of this server has room for {ROOM}",
    )
    assert good == ("pass", "")
    refused = inside(narrow, meta | {"input_ids": [*ids, 9, 9]})
    assert (refused.status_code, "67 tokens" in refused.text, f"room for {ROOM}" in refused.text) == (400, True, True)


def test_exact_claims_that_are_cut(narrow: Server) -> None:
    """Generated again by the same WIDE: what would be cut is unverifiable, and what was cut passes."""
    requested = {"return_toploc_fingerprints": False, "return_row_hashes": True}
    ids = prompt_of(60, 730)
    meta = generate_with_fingerprints(narrow, ids, 8, **requested)
    assert (len(meta["input_ids"]), len(meta["output_ids"])) == (CUT, 2)
    claim = {name: meta[name] for name in ("input_ids", "output_ids", "row_hashes")} | {"sampling": {"temperature": 0}}
    whole = claim | {"input_ids": ids}
    output = claim | {"output_ids": [*meta["output_ids"], *[9] * 3]}
    assert results(narrow, claim, whole, output) == [
        ("pass", ""),
        ("unverifiable", f"the prompt has 60 tokens, and this server answers prompts of at most {CUT}"),
        ("unverifiable", "the response has 5 tokens, and the context of this server has room for 4 after its prompt"),
    ]


def test_without_cutting(server: Server) -> None:
    """A response up to the end of the context passes, and one token more is unverifiable."""
    meta = generate_with_fingerprints(server, prompt_of(WIDE - 40, 740), 40)
    assert len(meta["input_ids"]) + len(meta["output_ids"]) == WIDE - 2
    post(server, "/flush_cache", {}).raise_for_status()
    longer = claim_of(meta, input_ids=[*meta["input_ids"], 9])
    assert [verdict for verdict, _ in results(server, claim_of(meta), longer)] == ["pass", "unverifiable"]
    reason = f"the claim has {WIDE - 2} tokens to run, and the context of this server has room for {WIDE - 3}"
    assert results(server, longer) == [("unverifiable", reason)]
    assert worst(inside(server, meta)) <= 8


@pytest.mark.parametrize("fingerprinted", [True, False])
def test_sessions(narrow: Server, fingerprinted: bool) -> None:
    """``return_input_ids`` has all that the model read: earlier turns, what was dropped of them, and what was cut."""
    session = post(narrow, "/open_session", {"capacity_of_str_len": 1000}).raise_for_status().json()
    first, second, third = (prompt_of(length, 750 + length + fingerprinted) for length in (10, 12, 30))
    requested = {} if fingerprinted else {"return_toploc_fingerprints": False}

    def turn(prompt: list[int], **params: Any) -> Any:
        return generate_with_fingerprints(narrow, prompt, 8, session_params={"id": session, **params}, **requested)

    one = turn(first)
    two = turn(second, rid=one["id"])
    assert two["input_ids"] == [*first, *one["output_ids"], *second]
    assert two["prompt_tokens"] == 30
    dropped = turn(second[:5], rid=two["id"], drop_previous_output=True)
    assert dropped["input_ids"] == [*two["input_ids"], *second[:5]]
    offset = turn(second[:4], rid=two["id"], offset=7)
    assert offset["input_ids"] == [*two["input_ids"][:7], *second[:4]]
    truncated = turn(third, rid=two["id"])
    assert truncated["input_ids"] == [*two["input_ids"], *two["output_ids"], *third][:CUT]
    turns = [one, two, dropped, offset, truncated]
    if fingerprinted:
        assert verdicts(narrow, *map(claim_of, turns)) == ["pass"] * 5
    else:
        assert not any(FINGERPRINTS in each for each in turns)
    post(narrow, "/close_session", {"session_id": session}).raise_for_status()


def test_a_session_in_a_stream(narrow: Server) -> None:
    """The last chunk has the ids."""
    session = post(narrow, "/open_session", {"capacity_of_str_len": 1000}).raise_for_status().json()
    one = generate_with_fingerprints(narrow, prompt_of(10, 760), 4, session_params={"id": session})
    body = {
        "input_ids": [11, 12],
        "sampling_params": {"max_new_tokens": 4, "temperature": 0},
        "session_params": {"id": session, "rid": one["id"]},
        "stream": True,
        "return_input_ids": True,
    }
    answer = post(narrow, "/generate", body).raise_for_status()
    last = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")][-1]
    assert json.loads(last)["meta_info"]["input_ids"] == [*one["input_ids"], *one["output_ids"], 11, 12]


def test_a_prompt_alone(narrow: Server, tmp_path: Path) -> None:
    """The fingerprint of a response of no tokens is verified on each route; another prompt's fails."""
    prompt, other = prompt_of(40, 770), prompt_of(40, 771)
    meta = generate_with_fingerprints(narrow, prompt, 0)
    assert (meta["output_ids"], len(meta[FINGERPRINTS])) == ([], 1)
    nonced = generate_with_fingerprints(narrow, prompt, 0, toploc_nonce="n")
    claims = [claim_of(meta), claim_of(meta, input_ids=other), claim_of(nonced, nonce="n"), claim_of(nonced)]
    claims.append(claim_of(meta, sampling={"temperature": 0}))
    assert verdicts(narrow, *claims) == ["pass", "fail", "pass", "fail", "pass"]
    bodies: dict[str, dict[str, Any]] = {
        "/generate": {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}},
        "/v1/completions": {"prompt": prompt, "max_tokens": 0, "model": ""},
        "/v1/chat/completions": {"input_ids": prompt, "messages": MESSAGES, "max_tokens": 0, "model": ""},
    }
    for path, body in bodies.items():
        answer = post(narrow, path, body | {"output_ids": [], CLAIM: meta[FINGERPRINTS]}).raise_for_status().json()
        part = answer["meta_info"] if path == "/generate" else answer["choices"][0]
        assert json.loads(part.get("message", part)[RESULT])[0]["exp_mismatches"] <= 8, path
    with Client(narrow.url) as client:
        assert client.verify([Claim(prompt, [], meta[FINGERPRINTS])])[0]
    saved = tmp_path / "response.json"
    saved.write_text(json.dumps({"meta_info": meta}))
    assert main(["verify", str(saved), "--server", narrow.url]) == 0


def test_exact_mode_of_a_prompt_alone(narrow: Server) -> None:
    """Its rows have one hash."""
    prompt = prompt_of(40, 780)
    meta = generate_with_fingerprints(narrow, prompt, 0, return_toploc_fingerprints=False, return_row_hashes=True)
    claim = {"input_ids": prompt, "output_ids": [], "row_hashes": meta["row_hashes"], "sampling": {"temperature": 0}}
    assert verdicts(narrow, claim, claim | {"input_ids": prompt_of(40, 781)}) == ["pass", "fail"]
