"""Injection through the client, OpenAI's and SGLang's own routes and claims; limits, and servers without the option."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from tessera.client import Claim, Injection, connect
from tessera.client.options import GenerateOptions
from tessera.launching.server import Server
from tessera_testing.injected import (
    FLOAT32_ERROR,
    H,
    ask,
    b64,
    check,
    edit_of,
    override,
    prompt_of,
    rows_of,
    vectors_of,
)
from tessera_testing.reference import HuggingFace, relative_error


def test_the_client(injecting: Server, hf: HuggingFace) -> None:
    """``inject=`` does what the HTTP field does: one injection or several, and none."""
    prompt, one, two = prompt_of(24, seed=90), vectors_of(2, 90), vectors_of(1, 91)
    both = [Injection(one, positions=[4, 23]), Injection(two[0], positions=[9], mode="add", scale=2)]
    fields = [override([4, 23], one), override([9], two, mode="add", scale=2)]
    greedy: GenerateOptions = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True, "hidden_states": True}
    calls: list[tuple[Any, Any]] = [(both, fields), (both[0], fields[0]), (None, None)]
    rows = []
    with connect(injecting.url) as client:
        for inject, overrides in calls:
            found = client.generate(prompt, **(greedy if inject is None else {**greedy, "inject": inject}))
            answer = ask(injecting, prompt, overrides)
            states = found.numpy()
            assert states is not None
            assert list(found.output_ids) == answer["output_ids"]
            assert relative_error(states, rows_of(answer).astype(np.float64)) <= FLOAT32_ERROR
            rows.append(states)
    expected = hf.edited(prompt, lambda embeds: edit_of([9], 2 * two, add=True)(edit_of([4, 23], one)(embeds)))
    assert relative_error(rows[0][:24], expected) <= FLOAT32_ERROR
    assert relative_error(rows[2][:24], hf.states(prompt)) <= FLOAT32_ERROR
    assert min(relative_error(other[:24], expected) for other in rows[1:]) > 0.01


def test_the_client_verifies_what_was_injected(injecting: Server) -> None:
    """A claim passes with its own vectors, and not without."""
    inject = Injection(vectors_of(8, 80), positions=range(10, 18))
    with connect(injecting.url) as client:
        found = client.generate(
            prompt_of(40, seed=80), max_new_tokens=40, temperature=0, ignore_eos=True, fingerprints=True, inject=inject
        )
        claim = Claim.of(found, inject=inject)
        assert [one.verdict for one in client.verify([claim, replace(claim, inject=None)])] == ["pass", "fail"]
        marked = Injection(vectors_of(1, 50), None, "(")
        messages = [{"role": "user", "content": "def area(width)"}]
        chat = client.chat(messages, max_new_tokens=4, ignore_eos=True, fingerprints=True, inject=marked)
        assert chat.meta["injected"] == 1
        assert client.verify([Claim.of(chat, inject=marked)])[0]


def test_openai_routes(injecting: Server, hf: HuggingFace) -> None:
    """Chat finds its marker in the rendered prompt; completions take one value for each prompt."""
    vectors = vectors_of(1, 50)
    common = {"model": "tiny", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    common |= {"return_hidden_states": True, "hidden_states_format": "base64"}
    marked = {"input_embed_overrides": {"token": "(", **b64(vectors)}}
    with httpx.Client(base_url=f"{injecting.url}/v1", timeout=120) as client:
        chat = {"messages": [{"role": "user", "content": "def area(width)"}], "n": 2, **common, **marked}
        for choice in client.post("/chat/completions", json=chat).raise_for_status().json()["choices"]:
            ids = choice["prompt_token_ids"]
            place = ids.index(hf.tokenizer.encode("(", add_special_tokens=False)[0])
            check_choice(hf, ids, choice, edit_of([place], vectors))
        prompts = [prompt_of(12, seed=60), prompt_of(14, seed=61)]
        overrides = [None, override([13], vectors)]
        batch = {"prompt": prompts, "input_embed_overrides": overrides, **common}
        choices = client.post("/completions", json=batch).raise_for_status().json()["choices"]
        check_choice(hf, prompts[0], choices[0], lambda embeds: embeds)
        check_choice(hf, prompts[1], choices[1], edit_of([13], vectors))
        wrong = {**batch, "input_embed_overrides": [None, override([14], vectors)]}
        refused = client.post("/completions", json=wrong)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "input_embed_overrides[1].positions"
        assert "got 14; allowed: 0 to 13" in client.post("/completions", json={**wrong, "stream": True}).text
        many = {**batch, "input_embed_overrides": overrides[:1]}
        refused = client.post("/completions", json=many)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_embed_overrides")


def check_choice(hf: HuggingFace, prompt: list[int], choice: Any, edit: Any) -> None:
    """As `check`, for a choice of OpenAI's."""
    ids = choice.get("response_token_ids") or choice["token_ids"]  # a chat's name for them since 0.5.23
    check(hf, prompt, {"output_ids": ids, "meta_info": choice}, edit)


def test_verification_takes_the_same_injection(injecting: Server) -> None:
    """The fingerprints of an injected response are those of its prompt with these vectors, and of no other."""
    prompt, places = prompt_of(40, seed=80), list(range(10, 18))
    overrides = override(places, vectors_of(8, 80))
    fields = {"return_toploc_fingerprints": True, "return_hidden_states": False}
    answer = ask(injecting, prompt, overrides, max_new_tokens=40, **fields)
    fingerprints = answer["meta_info"]["toploc_verification_fingerprints"]
    claim = {"input_ids": prompt, "output_ids": answer["output_ids"], "fingerprints": fingerprints}
    others = override(places, vectors_of(8, 81))
    vectors: list[Any] = [overrides, None, others, [[]]]
    claims = [claim | {"input_embed_overrides": own} for own in vectors]
    verify = f"{injecting.url}/v1/toploc/verify"
    results = httpx.post(verify, json={"claims": claims}, timeout=60).raise_for_status().json()["results"]
    assert [result["verdict"] for result in results[:2]] == ["pass", "fail"], results
    assert results[3] == results[1]  # an empty list injects nothing
    exact, _, other = ([one["exp_mismatches"] for one in result["statistics"]] for result in results[:3])
    assert sum(exact) == 0
    assert min(other) > 0  # vectors of the same kind: within the thresholds of a tiny model, and not the same
    wrong = claim | {"input_embed_overrides": overrides | {"positions": [5]}}
    refused = httpx.post(verify, json={"claims": [claim, wrong]}, timeout=60)
    assert refused.json()["error"]["param"] == "claims[1].input_embed_overrides.positions"


def test_claims_inject_into_the_prompt_alone(injecting: Server) -> None:
    """Generated tokens of a claim are a prompt to the verifier, but none of them was injected, or is a place."""
    prompt = [*prompt_of(39, seed=82), 1001]
    fields = {"return_toploc_fingerprints": True, "return_hidden_states": False}
    by_token = {"token": 1001, **b64(vectors_of(1, 82))}
    answer = ask(injecting, prompt, by_token, max_new_tokens=40, **fields)
    claim = {
        "input_ids": prompt,
        "output_ids": answer["output_ids"],
        "fingerprints": answer["meta_info"]["toploc_verification_fingerprints"],
        "input_embed_overrides": by_token,
    }
    again = claim | {"output_ids": [1001] * 40}  # the answer has the token, too
    verify = f"{injecting.url}/v1/toploc/verify"
    results = httpx.post(verify, json={"claims": [claim, again]}, timeout=60).raise_for_status().json()["results"]
    assert [result["verdict"] for result in results] == ["pass", "fail"]
    assert results[1]["statistics"][0]["exp_mismatches"] <= 2  # the prompt is the same
    inside = claim | {"input_embed_overrides": override([40], vectors_of(1, 82))}
    refused = httpx.post(verify, json={"claims": [inside]}, timeout=60)
    assert refused.status_code == 400
    assert "got 40; allowed: 0 to 39" in refused.json()["error"]["message"]


def test_errors_in_a_stream(injecting: Server) -> None:
    """What is found wrong once the tokens are known has its status there, too."""
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 1}, "stream": True}
    wrong = body | {"input_embed_overrides": override([2], vectors_of(1, 1))}
    answer = httpx.post(f"{injecting.url}/generate", json=wrong, timeout=60)
    assert answer.status_code == 400
    assert "got 2; allowed: 0 to 1, in this prompt" in answer.json()["error"]["message"]


@pytest.mark.parametrize("which", ["server", "injecting"])
@pytest.mark.parametrize("field", ["query_embed_overrides", "item_embed_overrides"])
def test_vectors_of_sglangs_own_route(request: pytest.FixtureRequest, hf: HuggingFace, which: str, field: str) -> None:
    """Refused: stock SGLang would leave their KV to the plain prompt, which is right afterwards."""
    server, vectors = request.getfixturevalue(which), vectors_of(1, 92)
    query, item = prompt_of(10, seed=len(field)), prompt_of(9, seed=92)
    (query if field.startswith("query") else item)[3] = 1001
    body = {"model": "tiny", "query": query, "items": [item], "label_token_ids": [5, 6]}
    given = vectors.tolist() if 1001 in query else [vectors.tolist()]
    refused = httpx.post(
        f"{server.url}/v1/score", json=body | {"embed_override_token_id": 1001, field: given}, timeout=60
    )
    assert refused.status_code == 400, refused.text
    for part in (field, "got 1 vectors", "input_embed_overrides on /generate"):
        assert part in refused.json()["message"]
    plain = [*query, *item]
    answer = ask(server, plain)
    assert answer["meta_info"]["cached_tokens"] <= 3  # other tests' prompts may begin alike
    check(hf, plain, answer)
    scores = httpx.post(f"{server.url}/v1/score", json=body, timeout=60).raise_for_status().json()["scores"]
    assert np.allclose(scores, [likelihoods(hf, hf.states(plain)[-1])[[5, 6]]], rtol=1e-4)


def likelihoods(hf: HuggingFace, state: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of every token after this state."""
    scores = np.exp(hf.embeddings().astype(np.float64) @ state)
    found: npt.NDArray[np.float64] = scores / scores.sum()
    return found


def test_scores_of_injected_prompts(injecting: Server, hf: HuggingFace) -> None:
    """What stands in for /v1/score with vectors."""
    prompt, vectors = [*prompt_of(19, seed=93), 1001], vectors_of(1, 93)
    fields = {"return_logprob": True, "token_ids_logprob": [5, 6], "return_hidden_states": False}
    answer = ask(injecting, prompt, {"token": 1001, **b64(vectors)}, max_new_tokens=0, **fields)
    scores = np.exp([value for value, _, _ in answer["meta_info"]["output_token_ids_logprobs"][0]])
    expected = likelihoods(hf, hf.edited(prompt, edit_of([19], vectors))[-1])[[5, 6]]
    assert np.allclose(scores, expected, rtol=1e-4)


@pytest.mark.parametrize("which", ["server", "injecting"])
def test_vectors_on_v1_embeddings(request: pytest.FixtureRequest, which: str) -> None:
    """That route knows no such fields."""
    body = {"model": "tiny", "input": [[5, 6, 7]], "embed_override_token_id": 6}
    for field in ("embed_overrides", "positional_embed_overrides"):
        url = f"{request.getfixturevalue(which).url}/v1/embeddings"
        refused = httpx.post(url, json={**body, field: [vectors_of(1, 94).tolist()]}, timeout=60)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] in (field, "embed_override_token_id")


def test_limits_that_are_not_the_default(strained: Server) -> None:
    """They are those of the options."""
    with httpx.Client(base_url=strained.url, timeout=60) as client:
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 1}}
        for largest, status in ((100.0, 200), (101.0, 400)):
            overrides = override([1], np.full((1, H), largest, "<f4"))
            answer = client.post("/generate", json={**body, "input_embed_overrides": overrides})
            assert answer.status_code == status, answer.text
        assert "got 101; allowed: values up to 100 (--injection-max-magnitude)" in answer.text
        for path in ("/generate", "/v1/chat/completions", "/v1/completions", "/invocations", "/vertex_generate"):
            answer = client.post(path, json={**body, "text": "a" * (4 * 2**20)})
            assert answer.status_code == 413, path
            assert "--injection-max-megabytes" in answer.json()["error"]["message"]


def test_a_body_that_is_too_large(injecting: Server) -> None:
    """413 before it is decoded, whether it says how long it is or not."""
    content = b'{"input_ids": [5], "text": "' + b"a" * (64 * 2**20)
    pieces = (content[start : start + 2**20] for start in range(0, len(content), 2**20))
    for body in (content, pieces):
        answer = httpx.post(f"{injecting.url}/generate", content=body, timeout=60)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"
        assert "--injection-max-megabytes" in answer.json()["error"]["message"]
    ask(injecting, [5, 6, 7])


def test_without_the_option(server: Server) -> None:
    """A server without injection says which option it needs, also where stock SGLang would end."""
    for fields in (
        {"input_ids": [5, 6], "input_embed_overrides": override([0], vectors_of(1, 1))},
        {"input_embeds": vectors_of(2, 1).tolist()},
        {"input_embeds_b64": {"data": "", "shape": [1, H], "dtype": "float32"}},
    ):
        answer = httpx.post(f"{server.url}/generate", json=fields, timeout=60)
        assert answer.status_code == 400
        assert "--enable-injection" in answer.json()["error"]["message"]
    ask(server, [5, 6, 7])
