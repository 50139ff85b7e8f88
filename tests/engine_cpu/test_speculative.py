"""Speculative decoding on the CPU engine: the tokens and the rows of plain decoding, greedily, in float32.

Every server is strained: prompts come in chunks, and requests are retracted again and again.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from tessera.launching.server import Server
from tessera.refusal import BEFORE_0_5_23
from tessera_testing.canary import canaries, fly_exactly
from tessera_testing.claims import verdicts
from tessera_testing.drafts import TREE, chain, code_and_noise, drafting, retracting
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import generate
from tessera_testing.marks import is_installed, only_in_full
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, relative_error

FLOAT32_ERROR = 1e-5
# SGLang's own C++ of the n-gram corpus is compiled at start. Up to 0.5.17 it lacks an include that GCC 12 asks for.
COMPILER = {"CXX": "c++ -include cstddef"} if is_installed("<0.5.18") else {}
COMMON = ("--enable-return-hidden-states", "--chunked-prefill-size", "16")
SERVERS = {
    "eagle": drafting("EAGLE", chain(3)),
    "eagle3": drafting("EAGLE3", TREE),
    "standalone": drafting("STANDALONE", TREE),
    "ngram": ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"),
}


TREES_FIRST = pytest.mark.parametrize(
    "speculative", ["eagle3", *only_in_full("eagle", "standalone", "ngram")], indirect=True
)
"""Of the algorithms, which accept by the same code, the one with the largest trees."""
CHAINS_FIRST = pytest.mark.parametrize(
    "speculative", ["eagle", *only_in_full("eagle3", "standalone", "ngram")], indirect=True
)
"""The one with chains."""


@pytest.fixture(params=["eagle", "eagle3", *only_in_full("standalone", "ngram")])
def speculative(request: pytest.FixtureRequest, server_pool: ServerPool) -> Server:
    """One server for each algorithm."""
    if request.param == "ngram" and shutil.which("c++") is None:
        pytest.skip("SGLang compiles its n-gram corpus: no C++ compiler here")
    if request.param == "ngram" and is_installed(BEFORE_0_5_23):
        pytest.skip("refused beside injection with this SGLang")
    compiler = COMPILER if request.param == "ngram" else {}
    return server_pool.get("--enable-injection", *COMMON, *SERVERS[request.param], env=compiler | retracting(5))


def ask(server: Server, prompts: Any, tokens: int, sampling: dict[str, Any] | None = None) -> Any:
    """Greedy answers, with all raw rows."""
    return generate(server, prompts, tokens, sampling, return_hidden_states=True)


def rows_of(answer: Any) -> npt.NDArray[np.float64]:
    """All rows of the nested list."""
    return np.vstack([np.array(part, np.float64) for part in answer["meta_info"]["hidden_states"]])


def check(hf: HuggingFace, prompt: list[int], answer: Any) -> None:
    """Each token is the reference's favourite, and each row is its row: as many as N+M-1."""
    output = answer["output_ids"]
    fed = [*prompt, *output[:-1]]
    assert output == hf.favourites(fed)[len(prompt) - 1 :]
    found = rows_of(answer)
    expected = hf.states(fed)
    assert found.shape == expected.shape
    assert max(relative_error(row, other) for row, other in zip(found, expected, strict=True)) <= FLOAT32_ERROR * 10
    assert relative_error(found, expected) <= FLOAT32_ERROR


def test_tokens_and_rows(speculative: Server, hf: HuggingFace) -> None:
    """As plain decoding gives them, although drafts were accepted, prompts chunked and requests retracted."""
    prompts = code_and_noise(hf.tokenizer, seed=1)
    answers = ask(speculative, prompts, tokens=40)
    for prompt, answer in zip(prompts, answers, strict=True):
        check(hf, prompt, answer)
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 40
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0


@TREES_FIRST
def test_a_stop_among_accepted_drafts(speculative: Server, hf: HuggingFace) -> None:
    """Rows end where the answer ends, not where the verification did."""
    prompts = code_and_noise(hf.tokenizer, seed=1)[:4]
    for prompt, whole in zip(prompts, ask(speculative, prompts, tokens=24), strict=True):
        for end in range(5, 9):
            stop = {"stop_token_ids": [whole["output_ids"][end]], "ignore_eos": False}
            answer = ask(speculative, prompt, tokens=24, sampling=stop)
            assert answer["meta_info"]["finish_reason"]["type"] == "stop"
            assert len(answer["output_ids"]) <= end + 1
            check(hf, prompt, answer)


@CHAINS_FIRST
def test_a_stop_before_the_limit(speculative: Server, hf: HuggingFace) -> None:
    """Both among the tokens of one step: the stop counts, in text, tokens and rows, streamed or twice at once."""
    prompt = [321, 538, 266, 810, 274, 637]
    (whole,) = ask(speculative, [prompt], tokens=12)
    assert whole["output_ids"][:5] == [734, 274, 734, 18, 499]  # " sys\n    sys.ex"
    for stop in ({"stop_token_ids": [18]}, {"stop": "sys."}, {"stop": [".ex", "."]}, {"stop_regex": "[a-z][.]"}):
        for limit, count in ((5, 4), (6, 4), (4, 4), (3, 3)):
            answer = ask(speculative, prompt, limit, {"ignore_eos": False, "no_stop_trim": True, **stop})
            assert answer["output_ids"] == whole["output_ids"][:count]
            assert answer["text"] == " sys\n    sys."[: {4: 13, 3: 12}[count]]
            reason = answer["meta_info"]["finish_reason"]
            ends = (
                {"stop"} if limit > 4 else {"length"} if limit < 4 else {"stop", "length"}
            )  # both at once: SGLang's choice
            assert reason["type"] in ends, (stop, limit)
            assert answer["meta_info"]["completion_tokens"] == count
            check(hf, prompt, answer)
    trimmed = ask(speculative, prompt, 5, {"ignore_eos": False, "stop": "sys.", "n": 2})
    assert [answer["text"] for answer in trimmed] == [" sys\n    "] * 2
    body = {"input_ids": prompt, "stream": True, "return_embedding": {"over": "all"}}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 5, "stop_token_ids": [18]}
    answer = httpx.post(f"{speculative.url}/generate", json=body, timeout=120).raise_for_status().text
    last = json.loads([line for line in answer.splitlines() if line.startswith("data: {")][-1].removeprefix("data: "))
    assert (last["text"], last["meta_info"]["finish_reason"]["type"]) == (" sys\n    sys", "stop")
    pooled = hf.pooled(prompt, whole["output_ids"][:4], "mean", "all")
    assert relative_error(last["meta_info"]["embedding"], pooled) <= FLOAT32_ERROR
    assert ask(speculative, prompt, tokens=12)["output_ids"] == whole["output_ids"]


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_few_tokens(speculative: Server, hf: HuggingFace, tokens: int) -> None:
    """Nothing to verify, or nothing but what was verified."""
    (prompt,) = hf.tokenizer(["class A"])["input_ids"]
    answer = ask(speculative, prompt, tokens)
    assert len(answer["output_ids"]) == tokens
    found = rows_of(answer)
    assert len(found) == len(prompt) + max(tokens - 1, 0)
    assert relative_error(found, hf.states([*prompt, *answer["output_ids"][:-1]])) <= FLOAT32_ERROR


def test_two_samples(speculative: Server, hf: HuggingFace) -> None:
    """On the CPU SGLang verifies greedily, whatever the temperature: both are the same, each with its rows."""
    (prompt,) = hf.tokenizer(["def f(x):\n    return"])["input_ids"]
    answers = ask(speculative, prompt, tokens=12, sampling={"n": 2})
    assert len(answers) == 2
    for answer in answers:
        check(hf, prompt, answer)


@CHAINS_FIRST
def test_canaries(speculative: Server, hf: HuggingFace) -> None:
    """100 requests, 16 at once: shared prefixes, vectors, every option, streams, and clients that leave half-way."""
    flock = canaries(100, vocabulary=1000, seed=9, leaving=0.1, injecting=0.3)
    judged = fly_exactly(speculative.url, flock, hf)
    assert sum(verdict.cached > 0 for verdict in judged) > len(judged) / 3


@TREES_FIRST
def test_fingerprints(speculative: Server, hf: HuggingFace) -> None:
    """TOPLOC: a verifier, which drafts nothing in a prefill, accepts what was made with drafts; streamed as well."""
    claims = drafted_claims(speculative, code_and_noise(hf.tokenizer, seed=9))
    flush_cache(speculative)  # the rows of drafts, too
    assert verdicts(speculative, *claims, mixed(claims)) == ["pass"] * len(claims) + ["fail"]


@pytest.mark.full
@pytest.mark.parametrize("speculative", ["eagle"], indirect=True)
def test_a_server_without_drafts_verifies(speculative: Server, server: Server, hf: HuggingFace) -> None:
    """Fingerprints do not show how the rows were computed. One algorithm, for it takes two servers at once."""
    claims = drafted_claims(speculative, code_and_noise(hf.tokenizer, seed=10))
    assert verdicts(server, *claims, mixed(claims)) == ["pass"] * len(claims) + ["fail"]


def drafted_claims(server: Server, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Claims of greedy answers, every other one streamed; drafts were accepted in them."""
    claims, accepted = [], 0
    for i, prompt in enumerate(prompts):
        body = {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": 70, "temperature": 0, "ignore_eos": True},
            "return_toploc_fingerprints": True,
            "return_output_ids": True,
            "stream": i % 2 == 1,
        }
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=120).raise_for_status().text
        lines = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: {")]
        metas = [json.loads(line)["meta_info"] for line in lines or [answer]]
        found = [one for meta in metas for one in meta.get("toploc_verification_fingerprints", [])]
        claims.append({"input_ids": prompt, "output_ids": metas[-1]["output_ids"], "fingerprints": found})
        accepted += metas[-1]["spec_num_correct_drafts"]
    assert accepted > 40
    return claims


def mixed(claims: list[dict[str, Any]]) -> dict[str, Any]:
    """A claim with the fingerprints of another one's answer."""
    first, second = (claim["fingerprints"] for claim in claims[:2])
    return {**claims[0], "fingerprints": [first[0], *second[1:]]}
