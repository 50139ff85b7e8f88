"""Models that were trained, on the CPU engine: ``make test-real``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tessera.launching.server import Server
from tessera_testing import trained
from tessera_testing.claims import claim_of, generate_with_fingerprints, post
from tessera_testing.generate import generate
from tessera_testing.injected import ask, override, replaced, rows_of
from tessera_testing.librarys import proofs
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, cosine, relative_error

pytestmark = pytest.mark.real
FOLDER = Path(os.environ.get("TRAINED", ".real"))
TEXT = "The theorem follows by induction on the length of the list. In the base case, the list is empty."
CAPITALS = "The capital of Germany is Berlin. The capital of Spain is Madrid. The capital of"
ALIKE = [
    ("The cat sleeps on the warm sofa.", "A kitten is napping on the couch."),
    ("Interest rates were raised by the central bank.", "The bank increased the cost of borrowing money."),
    ("She plays the violin in an orchestra.", "He is a musician who performs with a band."),
    ("The recipe needs two eggs and a cup of flour.", "Mix the flour with eggs to bake the cake."),
    ("Paris is the capital of France.", "The capital city of Germany is Berlin."),
]
OTHERS: dict[str, Callable[[Any], Any]] = {
    "8 bits": trained.rounded(8),
    "fp8 (e4m3)": trained.fp8,
    "4 bits": trained.rounded(4),
}
"""The same weights, as a dishonest server might compute with them."""


@pytest.fixture(scope="module", params=trained.MODELS)
def name(request: pytest.FixtureRequest) -> str:
    """Of a model."""
    return str(request.param)


@pytest.fixture(scope="module")
def real(name: str) -> HuggingFace:
    """The reference."""
    return HuggingFace(FOLDER / name)


@pytest.fixture
def server(server_pool: ServerPool, name: str) -> Server:
    """With everything on."""
    options = ("--toploc-verification", "--enable-injection", "--max-total-tokens", "4096")
    return server_pool.get(*options, model=FOLDER / name, spawned=True)


@pytest.fixture(scope="module")
def table(pytestconfig: pytest.Config, name: str) -> Iterator[dict[str, str]]:
    """What was found, as a column of the docs' table."""
    found: dict[str, str] = {}
    yield found
    if path := pytestconfig.getoption("--models-table"):
        when = {"SGLang": version("sglang"), "date": datetime.now(UTC).date().isoformat()}
        others = json.loads(path.read_text()) if path.exists() else {}
        before = {what: value for what, value in others.get(name, {}).items() if what not in when}
        column = before | found | when
        path.write_text(json.dumps(others | {name: column}, indent=1) + "\n")


def test_text_and_rows(server: Server, real: HuggingFace, table: dict[str, str]) -> None:
    """Greedy tokens and every row are transformers' own."""
    prompt = real.tokenizer(TEXT)["input_ids"]
    answer = ask(server, prompt, max_new_tokens=24)
    fed = [*prompt, *answer["output_ids"][:-1]]
    assert answer["output_ids"] == real.favourites(fed)[len(prompt) - 1 :]
    error = relative_error(rows_of(answer), real.states(fed))
    assert error <= 1e-5
    capital = generate(server, real.tokenizer(f"{CAPITALS} France is")["input_ids"], 4)
    assert "Paris" in capital["text"]
    table["rows of 24 greedy tokens: relative error"] = f"{error:.0e}"


def test_sentences_that_say_the_same_are_nearest(server: Server, real: HuggingFace, table: dict[str, str]) -> None:
    """The ranking is transformers' own; most find their partner, among ten."""
    texts = [text for pair in ALIKE for text in pair]
    data = post(server, "/v1/embeddings", {"input": texts, "model": "any"}).raise_for_status().json()["data"]
    found = np.array([entry["embedding"] for entry in data])
    expected = np.stack([real.states(real.tokenizer(text)["input_ids"]).mean(0) for text in texts])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    assert min(cosine(one, other) for one, other in zip(found, expected, strict=True)) > 1 - 1e-9

    def ranking(vectors: Any) -> Any:
        centred = vectors - vectors.mean(0)
        centred /= np.linalg.norm(centred, axis=1, keepdims=True)
        return np.argsort(-(centred @ centred.T - 2 * np.eye(len(texts))), axis=1)

    assert (ranking(found) == ranking(expected)).all()
    partners = sum(int(row[0]) == (place ^ 1) for place, row in enumerate(ranking(found)))
    assert partners >= 6
    table["sentences whose nearest of nine others says the same"] = f"{partners} of {len(texts)}"


def test_fingerprints(server: Server, real: HuggingFace, name: str, table: dict[str, str]) -> None:
    """The honest server's and those of transformers' rows pass, and those of the same weights in 4 bits fail."""
    prompt = real.tokenizer(TEXT)["input_ids"]
    honest = claim_of(generate_with_fingerprints(server, prompt, tokens=64))
    fed = [*honest["input_ids"], *honest["output_ids"][:-1]]
    claims = [honest]
    for quantize in (None, *OTHERS.values()):
        model = real if quantize is None else _quantized(name, quantize)
        states = torch.from_numpy(model.states(fed)).bfloat16()
        claims.append({**honest, "fingerprints": proofs(states, len(prompt))})
    results = post(server, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()["results"]
    served, reference, *others = [result["verdict"] for result in results]
    for whose, verdict in zip(("honest", *OTHERS), (served, *others), strict=True):
        table[f"fingerprints, {whose} (SGLang {version('sglang')})"] = verdict
    assert (served, reference) == ("pass", "pass")
    assert others[-1] == "fail"


def test_injection(server: Server, real: HuggingFace, table: dict[str, str]) -> None:
    """Another word's embedding, injected, gives that word's rows and its answer."""
    prompt, other = (real.tokenizer(f"{CAPITALS} {country} is")["input_ids"] for country in ("France", "Italy"))
    assert len(prompt) == len(other)
    places = [place for place, (one, two) in enumerate(zip(prompt, other, strict=True)) if one != two]
    vectors = real.embedded([other[place] for place in places])
    answer = ask(server, prompt, override(places, vectors), max_new_tokens=6)
    fed = [*prompt, *answer["output_ids"][:-1]]
    error = relative_error(rows_of(answer), real.edited(fed, replaced(places, vectors)))
    assert error <= 1e-5
    assert "Rome" in answer["text"]
    table["“France” with the embedding of “Italy”"] = f"“{answer['text'].strip().splitlines()[0]}”"


def _quantized(name: str, quantize: Callable[[Any], Any]) -> HuggingFace:
    """The reference with its matrices quantized, the embedding not."""
    changed = HuggingFace(FOLDER / name)
    with torch.no_grad():
        for parameter, weight in changed.parameters():
            if weight.dim() == 2 and "embed" not in parameter:
                weight.copy_(quantize(weight))
    return changed
