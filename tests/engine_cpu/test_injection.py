"""``input_embed_overrides``: every answer is Hugging Face's with the same edit of ``inputs_embeds``, and no other's."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file

from tessera.client import Claim, Injection, connect
from tessera.client.options import GenerateOptions
from tessera.testing.reference import HuggingFace, relative_error
from tessera.testing.server import Server

FLOAT32_ERROR = 1e-5
H = 256
Matrix = npt.NDArray[np.float32]


def prompt_of(length: int, seed: int) -> list[int]:
    """A prompt that no other test has sent."""
    chooser = random.Random(f"injection {seed}")
    return [chooser.randrange(8, 1000) for _ in range(length)]


def vectors_of(count: int, seed: int, length: float = 1.0) -> Matrix:
    """Vectors about as long as the model's embeddings."""
    found: Matrix = (length * np.random.default_rng(seed).standard_normal((count, H)) / 16).astype("<f4")
    return found


def b64(vectors: Matrix) -> dict[str, Any]:
    """The fields that hold vectors."""
    return {"embeds": base64.b64encode(vectors.tobytes()).decode(), "shape": list(vectors.shape), "dtype": "float32"}


def override(positions: list[int], vectors: Matrix, **fields: Any) -> dict[str, Any]:
    """One object of input_embed_overrides."""
    return {"positions": positions, **b64(vectors), **fields}


def generate(server: Server, prompt: Any, overrides: Any = None, max_new_tokens: int = 5, **fields: Any) -> Any:
    """POST /generate with token ids, all rows back; greedy."""
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True, **fields.pop("sampling", {})}
    body = {"input_ids": prompt, "sampling_params": sampling, "input_embed_overrides": overrides, **fields}
    body = {"return_hidden_states": True, "hidden_states_format": "base64", **body}
    response = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def rows_of(answer: Any) -> Matrix:
    """All rows."""
    states = answer["meta_info"]["hidden_states"]
    found: Matrix = np.frombuffer(base64.b64decode(states["data"]), "<f4").reshape(states["shape"])
    return found


def replaced(positions: list[int], vectors: Matrix) -> Any:
    """The edit that the reference makes."""

    def edit(embeds: torch.Tensor) -> torch.Tensor:
        embeds[positions] = torch.from_numpy(vectors.copy())
        return embeds

    return edit


def check(hf: HuggingFace, prompt: list[int], answer: Any, edit: Any = lambda embeds: embeds) -> None:
    """Every row is the reference's."""
    expected = hf.edited([*prompt, *answer["output_ids"][:-1]], edit)
    found = rows_of(answer)
    assert found.shape == expected.shape
    assert relative_error(found, expected) <= FLOAT32_ERROR
    assert max(relative_error(row, other) for row, other in zip(found, expected, strict=True)) <= FLOAT32_ERROR * 10


def test_replace_and_the_prefix_cache(injecting: Server, hf: HuggingFace) -> None:
    """Shared up to the first vector with everybody, behind it with the same vectors alone."""
    prompt = prompt_of(60, seed=1)
    ours, others = vectors_of(3, 1), vectors_of(3, 2)
    places = [20, 21, 40]
    edit, other_edit = replaced(places, ours), replaced(places, others)
    for overrides, own_edit, cached in (
        (override(places, ours), edit, 0),
        (None, lambda embeds: embeds, 20),
        (override(places, others), other_edit, 20),
        (override(places, ours), edit, 59),
        (None, lambda embeds: embeds, 59),
        (override(places, np.vstack([ours[:2], others[2:]])), replaced(places, np.vstack([ours[:2], others[2:]])), 40),
        (override(places, others), other_edit, 59),
    ):
        answer = generate(injecting, prompt, overrides)
        assert answer["meta_info"]["cached_tokens"] == cached
        check(hf, prompt, answer, own_edit)


def edit_of(positions: list[int], vectors: Matrix, *, add: bool = False, matched: bool = False) -> Any:
    """The edit that the reference makes, in float64."""

    def edit(embeds: torch.Tensor) -> torch.Tensor:
        for position, vector in zip(positions, torch.from_numpy(vectors.copy()).double(), strict=True):
            base = embeds[position].double()
            own = vector * base.norm() / vector.norm() if matched else vector
            embeds[position] = (base + own if add else own).float()
        return embeds

    return edit


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"mode": "add"}, 1.0),
        ({"mode": "add", "scale": -0.5}, -0.5),
        ({"scale": 3}, 3.0),
        ({"scale": "norm-matched"}, 1.0),
        ({"mode": "add", "scale": "norm-matched"}, 1.0),
    ],
)
def test_modes(injecting: Server, hf: HuggingFace, fields: dict[str, Any], factor: float) -> None:
    """Replaced or added, scaled or brought to the length of what is there."""
    prompt, vectors, places = prompt_of(30, seed=2), vectors_of(4, 3), [29, 0, 7, 8]
    answer = generate(injecting, prompt, override(places, vectors, **fields))
    matched, add = fields.get("scale") == "norm-matched", fields.get("mode") == "add"
    check(hf, prompt, answer, edit_of(places, vectors * np.float32(factor), add=add, matched=matched))


def test_several_objects_for_one_prompt(injecting: Server, hf: HuggingFace) -> None:
    """Each with a mode of its own."""
    prompt, one, two = prompt_of(25, seed=3), vectors_of(2, 4), vectors_of(1, 5)
    answer = generate(injecting, prompt, [override([3, 9], one), override([5], two, mode="add")])

    def edit(embeds: torch.Tensor) -> torch.Tensor:
        edited: torch.Tensor = edit_of([5], two, add=True)(edit_of([3, 9], one)(embeds))
        return edited

    check(hf, prompt, answer, edit)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "list"])
def test_forms(injecting: Server, hf: HuggingFace, dtype: str) -> None:
    """Little-endian 16-bit numbers and nested lists hold the same vectors."""
    prompt, places = prompt_of(20, seed=4), [4, 5]
    vectors = vectors_of(2, 6)
    if dtype == "list":
        overrides: dict[str, Any] = {"positions": places, "embeds": vectors.tolist()}
    else:
        tensor = torch.from_numpy(vectors).to(getattr(torch, dtype))
        content = tensor.view(torch.uint8).numpy().tobytes()
        overrides = {"positions": places, "embeds": base64.b64encode(content).decode(), "shape": [2, H], "dtype": dtype}
        vectors = tensor.float().numpy()
    check(hf, prompt, generate(injecting, prompt, overrides), edit_of(places, vectors))


def test_places_found_by_a_token(injecting: Server, hf: HuggingFace) -> None:
    """By its id or its text, with what must stand beside it; in a prompt that is a text."""
    text = "def area(width, height):\n    return width"
    ids = hf.tokenizer(text)["input_ids"]
    marker = hf.tokenizer.encode("(", add_special_tokens=False)
    assert len(marker) == 1
    place = ids.index(marker[0])
    vectors = vectors_of(1, 8)
    for token in ("(", marker[0]):
        beside = {"left": ids[place - 1], "right": ids[place + 1]}
        overrides = {"token": token, "expect_neighbours": beside, **b64(vectors)}
        answer = generate(injecting, None, overrides, text=text)
        check(hf, ids, answer, edit_of([place], vectors))


def test_projections(injecting: Server, hf: HuggingFace, projections: Path) -> None:
    """By width, or by name."""
    prompt, places = prompt_of(20, seed=5), [3, 17]
    narrow = np.random.default_rng(9).standard_normal((2, 32)).astype("<f4")
    file = load_file(projections / "layer3.safetensors")
    wide = (narrow.astype(np.float64) @ file["weight"].T + file["bias"]).astype("<f4")
    check(hf, prompt, generate(injecting, prompt, override(places, narrow)), edit_of(places, wide))
    named = override(places, vectors_of(2, 10), projection="flip")
    check(hf, prompt, generate(injecting, prompt, named), edit_of(places, vectors_of(2, 10)[:, ::-1].copy()))


def test_batches_samples_and_streams(injecting: Server, hf: HuggingFace) -> None:
    """Every prompt has its own vectors, every sample those of its prompt."""
    prompts = [prompt_of(20, seed=6), prompt_of(24, seed=7), prompt_of(28, seed=8)]
    one, two = vectors_of(2, 11), vectors_of(1, 12)
    answers = generate(injecting, prompts, [override([1, 19], one), None, override([10], two, mode="add")])
    check(hf, prompts[0], answers[0], edit_of([1, 19], one))
    check(hf, prompts[1], answers[1])
    check(hf, prompts[2], answers[2], edit_of([10], two, add=True))
    for answer in generate(injecting, prompts[0], override([2], two), sampling={"n": 3, "temperature": 1.0}):
        check(hf, prompts[0], answer, edit_of([2], two))
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompts[1], "sampling_params": sampling, "stream": True, "return_hidden_states": True}
    body |= {"hidden_states_format": "base64", "input_embed_overrides": override([5], two)}
    with httpx.stream("POST", f"{injecting.url}/generate", json=body, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    check(hf, prompts[1], json.loads(lines[-1]), edit_of([5], two))


def test_everything_changes_when_every_embedding_is_its_own(injecting: Server, hf: HuggingFace) -> None:
    """The embeddings of the prompt's own tokens change nothing."""
    prompt = prompt_of(18, seed=9)
    table: Matrix = hf.embeddings()[prompt]
    answer = generate(injecting, prompt, override(list(range(18)), table))
    plain = generate(injecting, prompt)
    assert answer["output_ids"] == plain["output_ids"]
    check(hf, prompt, answer)


def test_whole_matrices(injecting: Server, hf: HuggingFace) -> None:
    """input_embeds as lists and as base64, with the prefix cache on, one prompt or several."""
    matrix, other = vectors_of(30, 13), vectors_of(12, 14)
    content = {"data": base64.b64encode(matrix.tobytes()).decode(), "shape": [30, H], "dtype": "float32"}
    filler = [1] * 30
    forms: list[tuple[dict[str, Any], int]] = [
        ({"input_embeds": matrix.tolist()}, 0),
        ({"input_embeds_b64": content}, 29),
    ]
    for fields, cached in forms:
        answer = generate(injecting, None, **fields)
        assert answer["meta_info"]["cached_tokens"] == cached
        check(hf, filler, answer, edit_of(list(range(30)), matrix))
    answers = generate(injecting, None, input_embeds=[matrix.tolist(), other.tolist()])
    check(hf, filler, answers[0], edit_of(list(range(30)), matrix))
    check(hf, [1] * 12, answers[1], edit_of(list(range(12)), other))


@pytest.mark.parametrize("field", ["input_embeds", "input_embeds_b64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39, 10001.0, -10001.0, 10000.0])
def test_values_of_whole_matrices(injecting: Server, field: str, value: float) -> None:
    """Each but the last is a 400 that names field and cause; JSON has no NaN, so a list of them is no body at all."""
    rows: list[list[float]] = vectors_of(3, 16).tolist()
    rows[1][7] = value
    with np.errstate(over="ignore"):
        content = np.array(rows, np.float64).astype("<f4").tobytes()
    base64_form = {"data": base64.b64encode(content).decode(), "shape": [3, H], "dtype": "float32"}
    form: Any = rows if field == "input_embeds" else base64_form
    body = json.dumps({"sampling_params": {"max_new_tokens": 1}, field: form})  # httpx refuses to write NaN
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{injecting.url}/generate", content=body, headers=headers, timeout=60)
    assert answer.status_code == (200 if value == 10000 else 400), answer.text
    if answer.status_code == 400 and (field != "input_embeds" or np.isfinite(value)):
        error = answer.json()["error"]
        assert error["param"] == ("input_embeds" if field == "input_embeds" else "input_embeds_b64.data")
        assert ("got '10001'" if abs(value) == 10001 else "NaN or infinity in row 1") in error["message"]


def test_logprobs_name_the_prompts_own_tokens(injecting: Server, hf: HuggingFace) -> None:
    """And are those of the edited prompt."""
    prompt, vectors, places = prompt_of(16, seed=10), vectors_of(2, 15), [6, 7]
    fields: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0}
    answer = generate(injecting, prompt, override(places, vectors), **fields)
    found = answer["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in found] == prompt
    expected = hf.logprobs(prompt, edit_of(places, vectors))
    assert np.allclose([value for value, _, _ in found[1:]], expected, atol=1e-4)


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
            answer = generate(injecting, prompt, overrides)
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


def test_round_trip(injecting: Server, hf: HuggingFace) -> None:
    """A state of one request is put into another, and its effect is the reference's."""
    giver, taker, place = prompt_of(22, seed=11), prompt_of(26, seed=12), 12
    state = rows_of(generate(injecting, giver, return_hidden_states={"positions": [21]}))
    assert relative_error(state, hf.states(giver)[21:]) <= FLOAT32_ERROR
    fields: dict[str, Any] = {"return_embedding": {"pooling": "last"}}
    before = generate(injecting, taker, **fields)
    after = generate(injecting, taker, override([place], state, scale="norm-matched"), **fields)
    edit = edit_of([place], state, matched=True)
    check(hf, taker, after, edit)
    last = hf.edited(taker, edit)[-1]
    assert relative_error(after["meta_info"]["embedding"], last) <= FLOAT32_ERROR
    assert relative_error(before["meta_info"]["embedding"], last) > 0.01


def test_chunks_retraction_and_mixed_batches(strained: Server, hf: HuggingFace) -> None:
    """A run of vectors over the ends of chunks, beside plain prompts that begin alike."""
    shared = prompt_of(40, seed=13)
    prompts = [[*shared, *prompt_of(5 + i, seed=14 + i)] for i in range(10)]
    runs = [list(range(4 + i, 4 + i + 20)) for i in range(10)]
    vectors = [vectors_of(20, 20 + i) for i in range(10)]
    overrides = [None if i % 3 == 2 else override(runs[i], vectors[i]) for i in range(10)]
    answers = generate(strained, prompts, overrides, max_new_tokens=30)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    for i, answer in enumerate(answers):
        check(hf, prompts[i], answer, edit_of(runs[i], vectors[i]) if overrides[i] else lambda embeds: embeds)


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
    check(hf, prompt, {"output_ids": choice["token_ids"], "meta_info": choice}, edit)


def test_verification_takes_the_same_injection(injecting: Server) -> None:
    """The fingerprints of an injected response are those of its prompt with these vectors, and of no other."""
    prompt, places = prompt_of(40, seed=80), list(range(10, 18))
    overrides = override(places, vectors_of(8, 80))
    fields = {"return_toploc_fingerprints": True, "return_hidden_states": False}
    answer = generate(injecting, prompt, overrides, max_new_tokens=40, **fields)
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
    answer = generate(injecting, prompt, by_token, max_new_tokens=40, **fields)
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
    """Its status is sent before the tokens are known."""
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 1}, "stream": True}
    wrong = body | {"input_embed_overrides": override([2], vectors_of(1, 1))}
    answer = httpx.post(f"{injecting.url}/generate", json=wrong, timeout=60)
    assert "got 2; allowed: 0 to 1, in this prompt" in answer.text
    assert answer.text.rstrip().endswith("data: [DONE]")


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
    for told in (field, "got '1 vectors'", "input_embed_overrides on /generate"):
        assert told in refused.json()["message"]
    plain = [*query, *item]
    answer = generate(server, plain)
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
    answer = generate(injecting, prompt, {"token": 1001, **b64(vectors)}, max_new_tokens=0, **fields)
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
        assert "got '101'; allowed: values up to 100 (--injection-max-magnitude)" in answer.text
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
    generate(injecting, [5, 6, 7])


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
    generate(server, [5, 6, 7])


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2}},
        {"sampling": {"logit_bias": {"9": 5.0}, "temperature": 1.0, "top_p": 0.8}},
        {"return_logprob": True, "logprob_start_len": 3, "top_logprobs_num": 2, "token_ids_logprob": [5, 6]},
        {"extra_key": "tenant"},
    ],
    ids=lambda fields: next(iter(fields.get("sampling", fields))),
)
def test_beside_other_options(injecting: Server, hf: HuggingFace, fields: dict[str, Any]) -> None:
    """Two lengths in one batch, one of them injected; other engines have died of such pairs.

    The last token of the prompt is among the injected: penalties count it. SGLang's CPU engine has no grammars.
    """
    prompts, vectors = [prompt_of(9, seed=70), prompt_of(31, seed=71)], vectors_of(2, 70)
    answers = generate(injecting, prompts, [None, override([2, 30], vectors)], max_new_tokens=8, **fields)
    check(hf, prompts[0], answers[0])
    check(hf, prompts[1], answers[1], edit_of([2, 30], vectors))
