"""``input_embed_overrides``: every answer is Hugging Face's with the same edit of ``inputs_embeds``, and no other's."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tessera.launching.server import Server
from tessera_testing.injected import (
    FLOAT32_ERROR,
    H,
    Matrix,
    ask,
    b64,
    check,
    edit_of,
    override,
    prompt_of,
    replaced,
    rows_of,
    vectors_of,
)
from tessera_testing.reference import HuggingFace, relative_error


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
        answer = ask(injecting, prompt, overrides)
        assert answer["meta_info"]["cached_tokens"] == cached
        check(hf, prompt, answer, own_edit)


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
    answer = ask(injecting, prompt, override(places, vectors, **fields))
    matched, add = fields.get("scale") == "norm-matched", fields.get("mode") == "add"
    check(hf, prompt, answer, edit_of(places, vectors * np.float32(factor), add=add, matched=matched))


def test_several_objects_for_one_prompt(injecting: Server, hf: HuggingFace) -> None:
    """Each with a mode of its own."""
    prompt, one, two = prompt_of(25, seed=3), vectors_of(2, 4), vectors_of(1, 5)
    answer = ask(injecting, prompt, [override([3, 9], one), override([5], two, mode="add")])

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
    check(hf, prompt, ask(injecting, prompt, overrides), edit_of(places, vectors))


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
        answer = ask(injecting, None, overrides, text=text)
        check(hf, ids, answer, edit_of([place], vectors))


def test_projections(injecting: Server, hf: HuggingFace, projections: Path) -> None:
    """By width, or by name."""
    prompt, places = prompt_of(20, seed=5), [3, 17]
    narrow = np.random.default_rng(9).standard_normal((2, 32)).astype("<f4")
    file = load_file(projections / "layer3.safetensors")
    wide = (narrow.astype(np.float64) @ file["weight"].T + file["bias"]).astype("<f4")
    check(hf, prompt, ask(injecting, prompt, override(places, narrow)), edit_of(places, wide))
    named = override(places, vectors_of(2, 10), projection="flip")
    check(hf, prompt, ask(injecting, prompt, named), edit_of(places, vectors_of(2, 10)[:, ::-1].copy()))


def test_batches_samples_and_streams(injecting: Server, hf: HuggingFace) -> None:
    """Every prompt has its own vectors, every sample those of its prompt."""
    prompts = [prompt_of(20, seed=6), prompt_of(24, seed=7), prompt_of(28, seed=8)]
    one, two = vectors_of(2, 11), vectors_of(1, 12)
    answers = ask(injecting, prompts, [override([1, 19], one), None, override([10], two, mode="add")])
    check(hf, prompts[0], answers[0], edit_of([1, 19], one))
    check(hf, prompts[1], answers[1])
    check(hf, prompts[2], answers[2], edit_of([10], two, add=True))
    for answer in ask(injecting, prompts[0], override([2], two), sampling={"n": 3, "temperature": 1.0}):
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
    answer = ask(injecting, prompt, override(list(range(18)), table))
    plain = ask(injecting, prompt)
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
        answer = ask(injecting, None, **fields)
        assert answer["meta_info"]["cached_tokens"] == cached
        check(hf, filler, answer, edit_of(list(range(30)), matrix))
    answers = ask(injecting, None, input_embeds=[matrix.tolist(), other.tolist()])
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
        assert ("got 10001;" if abs(value) == 10001 else "NaN or infinity in row 1") in error["message"]


def test_logprobs_name_the_prompts_own_tokens(injecting: Server, hf: HuggingFace) -> None:
    """And are those of the edited prompt."""
    prompt, vectors, places = prompt_of(16, seed=10), vectors_of(2, 15), [6, 7]
    fields: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0}
    answer = ask(injecting, prompt, override(places, vectors), **fields)
    found = answer["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in found] == prompt
    expected = hf.logprobs(prompt, edit_of(places, vectors))
    assert np.allclose([value for value, _, _ in found[1:]], expected, atol=1e-4)


def test_round_trip(injecting: Server, hf: HuggingFace) -> None:
    """A state of one request is put into another, and its effect is the reference's."""
    giver, taker, place = prompt_of(22, seed=11), prompt_of(26, seed=12), 12
    state = rows_of(ask(injecting, giver, return_hidden_states={"positions": [21]}))
    assert relative_error(state, hf.states(giver)[21:]) <= FLOAT32_ERROR
    fields: dict[str, Any] = {"return_embedding": {"pooling": "last"}}
    before = ask(injecting, taker, **fields)
    after = ask(injecting, taker, override([place], state, scale="norm-matched"), **fields)
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
    answers = ask(strained, prompts, overrides, max_new_tokens=30)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    for i, answer in enumerate(answers):
        check(hf, prompts[i], answer, edit_of(runs[i], vectors[i]) if overrides[i] else lambda embeds: embeds)


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
    answers = ask(injecting, prompts, [None, override([2, 30], vectors)], max_new_tokens=8, **fields)
    check(hf, prompts[0], answers[0])
    check(hf, prompts[1], answers[1], edit_of([2, 30], vectors))
