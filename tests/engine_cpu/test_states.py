"""``return_hidden_states`` on /generate: all N+M-1 rows, in order, whatever the cache, the chunks and the batch."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load

from tessera.launching.server import Server
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.reference import HuggingFace, relative_error

prompt_of = partial(fresh_prompt, "states")

FLOAT32_ERROR = 1e-5


def ask(server: Server, prompt: Any, states: Any = True, max_new_tokens: int = 5, **fields: Any) -> Any:
    """A greedy answer with states."""
    return generate(server, prompt, max_new_tokens, return_hidden_states=states, **fields)


def rows_of(states: Any) -> npt.NDArray[np.float64]:
    """All rows of the nested list."""
    return np.vstack([np.array(part, np.float64) for part in states])


def check(hf: HuggingFace, prompt: list[int], answer: Any) -> None:
    """Every row is the reference's."""
    expected = hf.states([*prompt, *answer["output_ids"][:-1]])
    found = rows_of(answer["meta_info"]["hidden_states"])
    assert found.shape == expected.shape
    assert max(relative_error(row, other) for row, other in zip(found, expected, strict=True)) <= FLOAT32_ERROR * 10
    assert relative_error(found, expected) <= FLOAT32_ERROR


def test_cold_and_cached(server: Server, hf: HuggingFace) -> None:
    """SGLang alone returns the last row of the prompt the second time; the list has its shape."""
    prompt = prompt_of(60, seed=1)
    for cached in (0, 59):
        answer = ask(server, prompt)
        assert answer["meta_info"]["cached_tokens"] == cached
        shapes = [np.shape(part) for part in answer["meta_info"]["hidden_states"]]
        assert shapes == [(60, 256), *[(256,)] * 4]
        check(hf, prompt, answer)


@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_number_of_new_tokens(server: Server, hf: HuggingFace, tokens: int) -> None:
    """SGLang alone returns nothing for none."""
    prompt = prompt_of(20, seed=2)
    answer = ask(server, prompt, max_new_tokens=tokens)
    assert len(rows_of(answer["meta_info"]["hidden_states"])) == 20 + max(tokens - 1, 0)
    check(hf, prompt, answer)


def test_chunks_retraction_and_mixed_batches(strained: Server, hf: HuggingFace) -> None:
    """SGLang alone keeps the last chunk, and duplicates what was retracted."""
    prompts = [prompt_of(30 + 5 * i, seed=10 + i) for i in range(10)]
    answers = ask(strained, prompts, max_new_tokens=30)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        check(hf, prompt, answer)


def test_one_value_for_each_prompt(server: Server, hf: HuggingFace) -> None:
    """A list says it prompt by prompt; who said false gets nothing."""
    prompts = [prompt_of(9, seed=30), prompt_of(12, seed=31), prompt_of(15, seed=32)]
    answers = ask(server, prompts, [True, False, "last"])
    check(hf, prompts[0], answers[0])
    assert "hidden_states" not in answers[1]["meta_info"]
    expected = hf.states([*prompts[2], *answers[2]["output_ids"][:-1]])[-1]
    assert relative_error(answers[2]["meta_info"]["hidden_states"], expected) <= FLOAT32_ERROR


def test_two_samples(server: Server, hf: HuggingFace) -> None:
    """Each sample has its own generated rows."""
    prompt = prompt_of(25, seed=40)
    answers = ask(server, prompt, max_new_tokens=8, sampling={"n": 2, "temperature": 1.5})
    assert len(answers) == 2
    for answer in answers:
        check(hf, prompt, answer)


@pytest.mark.parametrize("over", ["prompt", "output", "all"])
def test_over(server: Server, hf: HuggingFace, over: str) -> None:
    """Rows of the prompt, of what was generated, of both."""
    prompt = prompt_of(21, seed=50)
    answer = ask(server, prompt, {"over": over}, hidden_states_format="base64")
    all_rows = hf.states([*prompt, *answer["output_ids"][:-1]])
    expected = {"prompt": all_rows[:21], "output": all_rows[21:], "all": all_rows}[over]
    states = answer["meta_info"]["hidden_states"]
    found = np.frombuffer(base64.b64decode(states["data"]), "<f4").reshape(states["shape"])
    assert states["dtype"] == "float32"
    assert relative_error(found, expected) <= FLOAT32_ERROR


def test_positions(server: Server, hf: HuggingFace) -> None:
    """Named rows in their own order; one that is not there is a 400 and harms nobody."""
    prompt = prompt_of(30, seed=60)
    answer = ask(server, prompt, {"positions": [29, 0, 31]}, hidden_states_format="safetensors")
    states = answer["meta_info"]["hidden_states"]
    found = load(base64.b64decode(states["data"]))["hidden_states"]
    expected = hf.states([*prompt, *answer["output_ids"][:-1]])[[29, 0, 31]]
    assert relative_error(found, expected) <= FLOAT32_ERROR
    body = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": 2, "ignore_eos": True},
        "return_hidden_states": {"positions": [31]},
    }
    refused = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "no_such_position"
    assert "position 31 is not among the 31 rows" in refused.json()["error"]["message"]


def test_streaming_sends_each_row_once(server: Server, hf: HuggingFace) -> None:
    """SGLang alone sends all rows again with every chunk."""
    prompt = prompt_of(30, seed=70)
    sampling = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True, "return_hidden_states": True}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    assert [("hidden_states" in chunk["meta_info"]) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    check(hf, prompt, chunks[-1])


def test_together_with_an_embedding(server: Server, hf: HuggingFace) -> None:
    """One request may ask for both."""
    prompt = prompt_of(18, seed=80)
    answer = ask(server, prompt, return_embedding={"over": "all"})
    check(hf, prompt, answer)
    mean = rows_of(answer["meta_info"]["hidden_states"]).mean(0)
    assert relative_error(answer["meta_info"]["embedding"], mean) <= FLOAT32_ERROR


def test_bfloat16_rows_are_the_models_own_bytes(bf16: Server, hf: HuggingFace) -> None:
    """Two bytes a value, and the list holds the same numbers."""
    prompt = prompt_of(20, seed=90)
    listed = rows_of(ask(bf16, prompt)["meta_info"]["hidden_states"])
    states = ask(bf16, prompt, hidden_states_format="base64")["meta_info"]["hidden_states"]
    content = base64.b64decode(states["data"])
    assert (states["dtype"], states["shape"], len(content)) == ("bfloat16", [24, 256], 24 * 256 * 2)
    found = (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4").reshape(24, 256)
    assert relative_error(found[:20], listed[:20]) <= 0.01
    assert relative_error(found[:20], hf.states(prompt)) <= 0.02


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"return_hidden_states": "first"}, "return_hidden_states"),
        ({"return_hidden_states": {"layer": 1}}, "return_hidden_states.layer"),
        ({"return_hidden_states": {"positions": [-1]}}, "return_hidden_states.positions[0]"),
        ({"return_hidden_states": True, "hidden_states_format": "pickle"}, "hidden_states_format"),
    ],
)
def test_bad_value(server: Server, fields: dict[str, Any], field: str) -> None:
    """400 that names the field."""
    body = {"input_ids": [10, 11], "sampling_params": {"max_new_tokens": 1}, **fields}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
