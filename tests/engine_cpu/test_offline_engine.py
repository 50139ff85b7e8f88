"""`sgl.Engine` in programs of users: our options and fields are keywords; answers hold lists, as SGLang's do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tessera.launching.command import environment
from tessera.launching.server import Server
from tessera_testing.claims import FINGERPRINTS
from tessera_testing.injected import replaced, vectors_of
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.tiny import TINY

SEED = "d0713339d7bb08652cd194d43f7d5186a2d59dc9f2443f1ac463aae3e4f3c7b0"
"""The script with which this project began (SHA-256)."""
SCRIPTS = Path(__file__).parent / "scripts"
FLOAT32_ERROR = 1e-5
VECTORS = vectors_of(2, seed=3)
PROOF = "Complete the following Lean 4 code:\n\n```lean4\n/- tactic state:\nn : Nat\n⊢ n + 0 = n\n-/\n```"


def run(script: str, *args: str | Path) -> str:
    """Its output."""
    command = [sys.executable, str(SCRIPTS / script), str(TINY), *map(str, args)]
    ended = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=580, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, hf: HuggingFace, interpreter: Interpreter) -> Any:
    """What the program wrote."""
    folder = tmp_path_factory.mktemp("offline")
    weights = folder / "norm.pt"
    torch.save(dict(hf.parameters())["norm.weight"].detach().clone(), weights)
    code = (SCRIPTS / "offline_engine.py").read_text()
    args = ("-c", code, str(TINY), str(folder / "found.json"), json.dumps(VECTORS.tolist()), str(weights))
    ended = interpreter.finish(args, environment({}), folder, 580)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads((folder / "found.json").read_text())


def rows(answer: Any) -> Any:
    """The prompt's rows come as one list, then each generated row."""
    prompt_rows, *others = answer["meta_info"]["hidden_states"]
    return [*prompt_rows, *others]


def ids(prompt: Sequence[int], answer: Any) -> list[int]:
    """Of the tokens that have rows."""
    return [*prompt, *answer["output_ids"][:-1]]


def test_states(found: Any, hf: HuggingFace) -> None:
    """Lists, as json can write them: of batches and streams; ``last`` is one row. Bytes where they are asked for."""
    prompts, (every, last) = found["prompts"], found["states"]
    for answer in (every, found["stream"]):
        assert len(answer["meta_info"]["hidden_states"]) == 3
        assert relative_error(rows(answer), hf.states(ids(prompts[0], answer))) <= FLOAT32_ERROR
        assert answer["meta_info"][FINGERPRINTS]
    assert relative_error(last["meta_info"]["hidden_states"], hf.states(ids(prompts[1], last))[-1]) <= FLOAT32_ERROR
    states = found["base64"]["meta_info"]["hidden_states"]
    packed = np.frombuffer(base64.b64decode(states["data"]), "<f4").reshape(states["shape"])
    assert relative_error(packed, hf.states(ids(prompts[0], found["base64"]))) <= FLOAT32_ERROR


def test_embeddings(found: Any, hf: HuggingFace) -> None:
    """Of batches, samples, streams and calls at once; whoever did not ask gets none."""
    prompts, (first, second) = found["prompts"], found["embeddings"]
    one, other, streamed = found["async"]
    assert "embedding" not in other["meta_info"]
    assert len(found["samples"]) == 2
    pooled = [(answer, prompts[0], "mean") for answer in (one, found["stream"], *found["samples"])]
    pooled += [(streamed, prompts[1], "mean"), (first, prompts[0], "last"), (second, prompts[1], "last")]
    for answer, prompt, pooling in pooled:
        expected = hf.pooled(prompt, answer["output_ids"], pooling, over="prompt")
        assert relative_error(answer["meta_info"]["embedding"], expected) <= FLOAT32_ERROR


def test_injection_and_weights(found: Any, hf: HuggingFace) -> None:
    """Vectors take the places of embeddings; rows after an update are the new weights'."""
    prompt, answer = found["prompts"][0], found["injected"]
    expected = hf.edited(ids(prompt, answer), replaced([1, 2], VECTORS))
    assert relative_error(rows(answer), expected) <= FLOAT32_ERROR
    updated = found["updated"]
    assert relative_error(rows(updated), 2 * hf.states(ids(prompt, updated))) <= FLOAT32_ERROR


def test_mistakes(found: Any) -> None:
    """Each is an error that names it; the calls after it are right."""
    tokens, pooling, count, unknown, large = found["errors"]
    assert "input_ids" in tokens
    assert "1048576" in tokens
    assert "pooling" in pooling
    assert "median" in pooling
    assert "return_hidden_states" in count
    assert "return_embeddings" in unknown
    assert "--answer-max-megabytes" in large


def test_fingerprints(found: Any) -> None:
    """They come with each answer, but where a call wants none."""
    assert all("toploc_verification_fingerprints" in answer["meta_info"] for answer in found["embeddings"])
    assert "toploc_verification_fingerprints" not in found["without"]["meta_info"]


def test_the_first_use_is_as_its_author_wrote_it() -> None:
    """But for the option that enables hidden states, and log-probabilities beside the sampling parameters."""
    text = (SCRIPTS / "seed.py").read_text().replace(", enable_return_hidden_states=True", "")
    inside = '        "return_logprob": True,\n        "logprob_start_len": -1,\n    },\n)\n'
    beside = "    },\n    return_logprob=True,\n    logprob_start_len=-1,\n)\n"
    assert hashlib.sha256(text.replace(beside, inside).encode()).hexdigest() == SEED


@pytest.mark.timeout(600)  # it starts an engine, which no fixture does
def test_the_first_use(server: Server, tmp_path: Path, hf: HuggingFace) -> None:
    """The script that this project was made for runs with the stock engine, and finds all that it looks for."""
    out = run("run_seed.py", server.url, tmp_path / "found.npz")
    with np.load(tmp_path / "found.npz") as stored:
        states, embedding, over_http = stored["states"], stored["embedding"], stored["over_http"]
    for (found,), prompt in ((states, PROOF), (over_http, "test")):  # a list for each token that is generated
        assert relative_error(found, hf.states(hf.tokenizer(prompt)["input_ids"])) <= FLOAT32_ERROR
    assert np.array_equal(embedding, states[0])
    assert len(re.findall(r"^    logprobs type: <class 'list'>, len: [1-9]", out, re.MULTILINE)) == 4
    assert len(re.findall(r"^    total log_prob: -\d", out, re.MULTILINE)) == 4
    assert "HTTP server SUPPORTS return_hidden_states!" in out
    assert out.endswith("\nDone. Use shapes above to adjust /encode indexing in SglangClient.\n")
