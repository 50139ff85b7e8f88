"""Adapters (LoRA): rows, vectors and verdicts are those of the adapter that a request names, on every route of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.cli import main
from tessera.client import Claim, Client
from tessera.client.options import SamplingOptions
from tessera.launching.server import Server
from tessera_testing import adapters
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

FLOAT32_ERROR = 1e-5
NAMES = [None, "own", "other"]
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def merged(lora: dict[str, Path], hf: HuggingFace, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference of the model without an adapter, and with each."""
    return {None: hf} | {name: adapters.merged(path, tmp_path_factory.mktemp(name)) for name, path in lora.items()}


def named(name: str | None) -> dict[str, str]:
    """The field, where there is an adapter."""
    return {} if name is None else {"lora_path": name}


def test_rows_of_a_mixed_batch(narrow: Server, merged: Any) -> None:
    """Of one prompt with and without adapters, cold and cached: each has the KV and the rows of its own."""
    prompt = prompt_of(40, 600)
    body = {
        "input_ids": [prompt] * 3,
        "lora_path": NAMES,
        "sampling_params": {"max_new_tokens": 4, "temperature": 0},
        "return_embedding": True,
    }
    for _ in range(2):
        answers = post(narrow, "/generate", body).raise_for_status().json()
        for name, answer in zip(NAMES, answers, strict=True):
            mean = merged[name].states(prompt).mean(0)
            assert relative_error(answer["meta_info"]["embedding"], mean) <= FLOAT32_ERROR
    means = [merged[name].states(prompt).mean(0) for name in NAMES]
    assert min(relative_error(means[i], means[i - 1]) for i in range(3)) > 0.1


def test_verdicts(narrow: Server) -> None:
    """In one request: honest ones pass, each other adapter fails, one that is not loaded cannot be verified."""
    metas = [generate_with_fingerprints(narrow, prompt_of(30, 610), 20, **named(name)) for name in NAMES]
    claims = [claim_of(meta, **named(name)) for meta in metas for name in NAMES]
    unknown = [claim_of(metas[1], lora_path="missing"), claim_of(metas[1], lora_path=None)]
    sampled = claim_of(metas[1], lora_path="own", sampling={"temperature": 0})
    answer = post(narrow, "/v1/toploc/verify", {"claims": [*claims, *unknown, sampled]}).raise_for_status().json()
    results = answer["results"]
    honest = [i % 4 == 0 for i in range(9)]
    expected = ["pass" if own else "fail" for own in honest]
    assert [result["verdict"] for result in results] == [*expected, "unverifiable", "fail", "pass"]
    assert results[9]["reason"] == "lora_path: got 'missing'; allowed: own | other"
    assert results[11]["sampling"]["gap_max"] < 0.01
    assert verdicts(narrow, claim_of(metas[2], lora_path="other")) == ["pass"]


def test_exact_mode(narrow: Server) -> None:
    """A response is generated again with its adapter; alone, for the CPU's bits depend on the batch."""
    prompt = prompt_of(30, 620)
    requested = {"return_toploc_fingerprints": False, "return_row_hashes": True}
    meta = generate_with_fingerprints(narrow, prompt, 20, lora_path="own", **requested)
    claim = {"input_ids": prompt, "output_ids": meta["output_ids"], "row_hashes": meta["row_hashes"]}
    claim |= {"sampling": {"temperature": 0}}
    found = [verdicts(narrow, claim | named(name)) for name in ("own", None, "other")]
    assert found == [["pass"], ["fail"], ["fail"]]


Check = Callable[[str | None], dict[str, Any]]


def by_ids(prompt: list[int], meta: Any, name: str | None) -> tuple[str, dict[str, Any]]:
    """On ``/generate``."""
    return "/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}, **named(name)}


def by_completion(prompt: list[int], meta: Any, name: str | None) -> tuple[str, dict[str, Any]]:
    """On ``/v1/completions``, by OpenAI's model."""
    return "/v1/completions", {"prompt": prompt, "max_tokens": 0, "model": "tiny" if name is None else f"tiny:{name}"}


def by_chat(prompt: list[int], meta: Any, name: str | None) -> tuple[str, dict[str, Any]]:
    """On ``/v1/chat/completions``."""
    return "/v1/chat/completions", {
        "input_ids": prompt,
        "messages": MESSAGES,
        "max_tokens": 0,
        "model": "",
        **named(name),
    }


@pytest.mark.parametrize("ask", [by_ids, by_completion, by_chat])
def test_verification_inside_a_request(narrow: Server, ask: Callable[..., tuple[str, dict[str, Any]]]) -> None:
    """As in the guide, by exact ids."""
    prompt = prompt_of(30, 630)
    meta = generate_with_fingerprints(narrow, prompt, 20, lora_path="own")
    found = {}
    for name in NAMES:
        path, body = ask(prompt, meta, name)
        answer = post(narrow, path, body | {"output_ids": meta["output_ids"], CLAIM: meta[FINGERPRINTS]})
        found[name] = json.loads(_result(answer.raise_for_status().json()))
    assert max(one["exp_mismatches"] for one in found["own"]) <= 8
    assert min(max(one["exp_mismatches"] for one in found[name]) for name in (None, "other")) > 8


def _result(answer: Any) -> str:
    part = answer["meta_info"] if "meta_info" in answer else answer["choices"][0]
    return str(part.get("message", part)[RESULT])


def test_embeddings(narrow: Server, merged: Any) -> None:
    """``model`` as on SGLang's routes, or ``lora_path``; the first counts."""
    prompt = prompt_of(30, 640)
    served = post(narrow, "/v1/embeddings", {"input": prompt}).raise_for_status().json()["model"]
    cases = [
        ({"model": "tiny:own"}, "own"),
        ({"model": served + ":other"}, "other"),
        ({"lora_path": "other"}, "other"),
        ({"model": "tiny", "lora_path": "own"}, "own"),
        ({"model": "tiny:own", "lora_path": "other"}, "own"),
        ({"model": "tiny:"}, None),
        ({"model": served, "lora_path": None}, None),
        ({"model": 7}, None),
    ]
    for fields, name in cases * 2:
        answer = post(narrow, "/v1/embeddings", {"input": prompt, **fields}).raise_for_status().json()
        mean = merged[name].states(prompt).mean(0)
        assert relative_error(answer["data"][0]["embedding"], mean) <= FLOAT32_ERROR, fields


def test_encode(narrow: Server, merged: Any) -> None:
    """The text's mean, by each adapter, and by the client."""
    prompt = prompt_of(30, 645)
    for name in NAMES:
        mean = merged[name].states(_ids(narrow, "def pop(self):")).mean(0)
        body = {"text": "def pop(self):", **named(name)}
        answer = post(narrow, "/encode", body).raise_for_status().json()
        assert relative_error(answer["embedding"], mean) <= FLOAT32_ERROR
    with Client(narrow.url) as client:
        own, other = client.encode(prompt, lora_path="own"), client.encode_batch([prompt], lora_path="other")
    assert relative_error(own.vector, merged["own"].states(prompt).mean(0)) <= FLOAT32_ERROR
    assert relative_error(np.asarray(other.matrix)[0], merged["other"].states(prompt).mean(0)) <= FLOAT32_ERROR


def _ids(server: Server, text: str) -> Any:
    body = {"text": text, "return_input_ids": True, "sampling_params": {"max_new_tokens": 1}}
    return post(server, "/generate", body).raise_for_status().json()["meta_info"]["input_ids"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": "x", "model": "tiny:missing"}, "model: got 'missing'; allowed: own | other"),
        ("/v1/embeddings", {"input": "x", "model": "own"}, ":own for this adapter"),
        ("/v1/embeddings", {"input": "x", "lora_path": "missing"}, "lora_path: got 'missing'; allowed: own | other"),
        ("/v1/embeddings", {"input": "x", "lora_path": ["own"]}, "lora_path: got ['own']; allowed: the name"),
        ("/encode", {"text": "x", "lora_path": "missing"}, "lora_path: got 'missing'; allowed: own | other"),
        ("/encode", {"text": ["x"], "lora_path": ["own"]}, "lora_path: got ['own']; allowed: the name"),
        ("/generate", {"text": "x", "lora_path": ["own"]}, "lora_path: got ['own']; allowed: one name, or a list"),
        ("/generate", {"text": ["x", "y"], "lora_path": ["own"]}, "there are 2 prompts"),
        ("/v1/completions", {"prompt": [5, 6], "model": "", "lora_path": ["own"]}, "there is one prompt"),
        ("/v1/completions", {"prompt": ["x", "y"], "model": "", "lora_path": ["own"]}, "there are 2 prompts"),
        ("/v1/chat/completions", {"messages": MESSAGES, "model": "", "lora_path": ["own"]}, "there is one prompt"),
        (
            "/v1/toploc/verify",
            {"claims": [{"input_ids": [5], "output_ids": [6], "lora_path": 3}]},
            "claims[0].lora_path",
        ),
    ],
)
def test_refusals(narrow: Server, path: str, body: dict[str, Any], message: str) -> None:
    """By name; SGLang's scheduler ends at a list of adapters beside one prompt."""
    answer = post(narrow, path, body)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert post(narrow, "/encode", {"text": "x", "lora_path": "own"}).status_code == 200


def test_a_server_without_adapters(server: Server) -> None:
    """Names none as loaded; a claim that names one cannot be verified, those beside it are."""
    for path, body in (
        ("/v1/embeddings", {"input": "x", "model": "tiny:own"}),
        ("/encode", {"text": "x", "lora_path": "own"}),
    ):
        answer = post(server, path, body)
        assert answer.status_code == 400
        assert "no adapter" in answer.json()["error"]["message"]
    meta = generate_with_fingerprints(server, prompt_of(30, 650), 20)
    assert verdicts(server, claim_of(meta), claim_of(meta, lora_path="own")) == ["pass", "unverifiable"]


def test_the_client_and_the_command_line(narrow: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both name the adapter of a claim."""
    with Client(narrow.url) as client:
        greedy: SamplingOptions = {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}
        generation = client.generate(prompt_of(30, 660), **greedy, fingerprints=True, lora_path="own")
        claims = [Claim.of(generation, lora_path=name) for name in ("own", "other", None)]
        assert [verdict.verdict for verdict in client.verify(claims)] == ["pass", "fail", "fail"]
    path = tmp_path / "response.json"
    path.write_text(
        json.dumps({"meta_info": generate_with_fingerprints(narrow, prompt_of(30, 661), 20, lora_path="own")})
    )
    assert main(["verify", str(path), "--server", narrow.url, "--lora-path", "own"]) == 0
    assert main(["verify", str(path), "--server", narrow.url]) == 1
    assert "FAIL" in capsys.readouterr().out
