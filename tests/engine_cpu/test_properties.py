"""Random mixes of prompts, lengths, cache states and options: every vector and every row is Hugging Face's."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from tessera.launching.server import Server
from tessera_testing.canary import OVERS, POOLINGS
from tessera_testing.endpoints import flush_cache
from tessera_testing.reference import HuggingFace, Vector, relative_error

FLOAT32_ERROR = 1e-5
ROW_ERROR = 1e-4
"""One row is further off than a mean: attention in another order, in float32."""
CHOOSER = random.Random("properties")
TRUNKS = [[CHOOSER.randrange(8, 1000) for _ in range(150)] for _ in range(4)]
"""Prompts are pieces of these: what one left in the prefix cache, another begins with."""

EMBEDDINGS = st.fixed_dictionaries(
    {"pooling": st.sampled_from(POOLINGS), "over": st.sampled_from(OVERS)},
    optional={
        "normalize": st.booleans(),
        "dimensions": st.integers(1, 256),
        "encoding_format": st.sampled_from(["float", "base64"]),
    },
)
STATES = st.one_of(
    st.just(False),
    st.just(True),
    st.just("last"),
    st.fixed_dictionaries({"over": st.sampled_from(OVERS)}),
    st.fixed_dictionaries({"positions": st.lists(st.integers(0, 150), min_size=1, max_size=6)}),
)


@dataclass(frozen=True)
class Ask:
    """One request: prompts as (trunk, length), tokens to generate, and what is asked for."""

    prompts: list[tuple[int, int]]
    tokens: int
    embedding: dict[str, Any] | None
    states: Any
    form: str
    n: int

    def ids(self) -> list[list[int]]:
        """The prompts, each as often as it has samples, in the order of the answers."""
        return [TRUNKS[trunk][:length] for trunk, length in self.prompts for _ in range(self.n)]

    def body(self) -> dict[str, Any]:
        """The request."""
        ids = [TRUNKS[trunk][:length] for trunk, length in self.prompts]
        sampling = {"max_new_tokens": self.tokens, "temperature": 0, "ignore_eos": True, "n": self.n}
        extra = {"return_hidden_states": self.states, "hidden_states_format": self.form}
        return {"input_ids": ids, "sampling_params": sampling, "return_embedding": self.embedding, **extra}


ASKS = st.builds(
    Ask,
    prompts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 150)), min_size=1, max_size=4),
    tokens=st.sampled_from([0, 1, 2, 3, 17]),
    embedding=st.none() | EMBEDDINGS,
    states=STATES,
    form=st.sampled_from(["list", "base64", "safetensors"]),
    n=st.sampled_from([1, 1, 2]),
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@example(asks=[Ask([(0, 1)], 0, None, {"over": "output"}, "safetensors", 1)], flush=False)  # no rows: once a 400
@example(asks=[Ask([(0, 1)], 2, None, {"positions": [1]}, "list", 2)], flush=False)  # two samples: once a 400
@given(asks=st.lists(ASKS, min_size=1, max_size=4), flush=st.booleans())
def test_any_mix(server: Server, hf: HuggingFace, asks: list[Ask], *, flush: bool) -> None:
    """Some requests at once, on a cache that is warm or empty."""
    if flush:
        flush_cache(server)
    with ThreadPoolExecutor(len(asks)) as pool:
        answers = list(pool.map(lambda ask: httpx.post(f"{server.url}/generate", json=ask.body(), timeout=120), asks))
    for ask, answer in zip(asks, answers, strict=True):
        refusal = why_refused(ask)
        if refusal:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, refusal)
            continue
        found = answer.raise_for_status().json()
        for ids, own in zip(ask.ids(), found if isinstance(found, list) else [found], strict=True):
            check(ask, ids, own, hf)


def why_refused(ask: Ask) -> str:
    """The code of the error that the request must get."""
    if ask.embedding is not None and ask.embedding["over"] == "output" and ask.tokens < 2:
        return "bad_request"
    positions = ask.states.get("positions", []) if isinstance(ask.states, dict) else []
    rows = min(length for _, length in ask.prompts) + max(ask.tokens - 1, 0)
    return "no_such_position" if any(position >= rows for position in positions) else ""


def check(ask: Ask, ids: Sequence[int], answer: dict[str, Any], hf: HuggingFace) -> None:
    """Both results of one prompt."""
    output = answer["output_ids"]
    assert len(output) == ask.tokens
    rows = hf.states([*ids, *output[:-1]])
    meta = answer["meta_info"]
    assert ("embedding" in meta) == (ask.embedding is not None)
    if ask.embedding is not None:
        expected = hf.pooled(ids, output, ask.embedding["pooling"], ask.embedding["over"])
        check_vector(ask.embedding, meta["embedding"], expected)
    assert ("hidden_states" in meta) == (ask.states is not False)
    if ask.states is not False:
        found = rows_of(meta["hidden_states"], ask)
        wanted = selected(ask.states, rows, len(ids)).reshape(-1, 256)
        assert found.shape == wanted.shape
        for row, other in zip(found, wanted, strict=True):
            assert relative_error(row, other) <= ROW_ERROR


def check_vector(options: dict[str, Any], found: Any, expected: Vector) -> None:
    """One embedding, with its options applied to the reference."""
    vector = np.frombuffer(base64.b64decode(found), "<f4") if isinstance(found, str) else np.array(found)
    shortened = expected[: options.get("dimensions")]
    wanted = shortened / np.linalg.norm(shortened) if options.get("normalize") else shortened
    assert vector.shape == wanted.shape
    assert relative_error(vector, wanted) <= FLOAT32_ERROR * (np.linalg.norm(expected) / np.linalg.norm(shortened))


def selected(states: Any, rows: Vector, prompt_tokens: int) -> Vector:
    """The rows that were asked for."""
    if states == "last":
        return rows[-1:]
    if not isinstance(states, dict):
        return rows
    if "positions" in states:
        return rows[states["positions"]]
    return {"prompt": rows[:prompt_tokens], "output": rows[prompt_tokens:], "all": rows}[states["over"]]


def rows_of(states: Any, ask: Ask) -> npt.NDArray[np.float64]:
    """The rows of an answer, whatever its form."""
    if ask.form == "list":
        parts = [states] if ask.states == "last" else states
        matrix: npt.NDArray[np.float64] = np.vstack([np.empty((0, 256)), *(np.reshape(p, (-1, 256)) for p in parts)])
        return matrix
    assert states["format"] == ask.form
    content = base64.b64decode(states["data"])
    rows: npt.NDArray[np.float32] = (
        load(content)["hidden_states"] if ask.form == "safetensors" else np.frombuffer(content, "<f4")
    )
    return np.asarray(rows.reshape(states["shape"]), np.float64)
