"""TOPLOC fingerprints of the real server: made, compared with the library's, and verified."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tessera.capabilities.fingerprints import codec
from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.capabilities.fingerprints.verifier import Distance
from tessera.cli import main
from tessera.launching.server import Server
from tessera.rows.chunks import layout
from tessera.rows.reads import Points
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
from tessera_testing.librarys import build_proofs_base64
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.weights import with_other_weights


def validate(server: Server, meta: Any, claim: Any) -> Any:
    """The way of the guide, by exact ids."""
    body = {"input_ids": meta["input_ids"], "output_ids": meta["output_ids"], CLAIM: claim}
    return post(server, "/generate", body | {"sampling_params": {"max_new_tokens": 0}})


def test_fingerprints_are_the_librarys(server: Server) -> None:
    """Prompt, 32 rows, 32 rows, the rest: byte by byte what the library builds from the raw states."""
    meta = generate_with_fingerprints(
        server, prompt_of(50, 1), return_hidden_states=True, hidden_states_format="base64"
    )
    assert meta[FINGERPRINTS] == _librarys(meta, 50)
    assert [len(one) for one in meta[FINGERPRINTS]] == [344] * 4
    assert (len(meta["input_ids"]), len(meta["output_ids"])) == (50, 70)


@pytest.mark.parametrize(
    ("which", "dtype"), [("bf16", "bfloat16"), pytest.param("fp16", "float16", marks=pytest.mark.full)]
)
def test_models_of_half_precision(request: pytest.FixtureRequest, which: str, dtype: str) -> None:
    """Their fingerprints are the library's too, and are verified by a prefill."""
    server: Server = request.getfixturevalue(which)
    meta = generate_with_fingerprints(
        server, prompt_of(50, 80), return_hidden_states=True, hidden_states_format="base64"
    )
    assert meta["hidden_states"]["dtype"] == dtype
    assert meta[FINGERPRINTS] == _librarys(meta, 50)
    post(server, "/flush_cache", {}).raise_for_status()
    assert verdicts(server, claim_of(meta)) == ["pass"]


def test_fingerprints_of_many_that_run_together(server: Server) -> None:
    """So many that they are read while the requests run; some end early, and one leaves."""
    lengths = {50 + i: 40 + i % 3 * 30 for i in range(24)}

    def prove(length: int) -> Any:
        if length == 60:
            body = {"input_ids": prompt_of(60, 60), "return_toploc_fingerprints": True}
            with suppress(httpx.ReadTimeout):
                httpx.post(f"{server.url}/generate", json=body, timeout=0.5)
            return None
        requested = {"return_hidden_states": True, "hidden_states_format": "base64"}
        return generate_with_fingerprints(server, prompt_of(length, length), lengths[length], **requested)

    with ThreadPoolExecutor(len(lengths)) as pool:
        for length, meta in zip(lengths, pool.map(prove, lengths), strict=True):
            if meta is not None:
                assert meta[FINGERPRINTS] == _librarys(meta, length)
                assert len(meta[FINGERPRINTS]) == 1 + -(-(lengths[length] - 1) // 32)


def _librarys(meta: Any, prompt_tokens: int) -> list[str]:
    """What the library builds from an answer's raw states."""
    states = meta["hidden_states"]
    content = bytearray(base64.b64decode(states["data"]))
    rows = torch.frombuffer(content, dtype=getattr(torch, states["dtype"])).reshape(states["shape"]).bfloat16()
    proofs: list[str] = build_proofs_base64([rows[:prompt_tokens], *rows[prompt_tokens:]], 32, 128)
    return proofs


def test_validation_as_in_the_guide(server: Server) -> None:
    """The last fingerprint gives one object, a list gives a list; both as text."""
    meta = generate_with_fingerprints(server, prompt_of(40, 2))
    last = json.loads(validate(server, meta, meta[FINGERPRINTS][-1]).json()["meta_info"][RESULT])
    every = json.loads(validate(server, meta, meta[FINGERPRINTS]).json()["meta_info"][RESULT])
    assert last == every[-1]
    assert [one["exp_mismatches"] <= 8 and one["mant_err_mean"] <= 2 for one in every] == [True] * 4
    assert set(last) == {"exp_mismatches", "mant_err_mean", "mant_err_median"}


@pytest.mark.parametrize("tokens", [0, 1, 2, 32, 33, 34])
def test_lengths(server: Server, tokens: int) -> None:
    """Around the edges of a chunk; a response of no token proves its prompt, and can be validated by it."""
    meta = generate_with_fingerprints(server, prompt_of(20, 3), tokens)
    assert len(meta[FINGERPRINTS]) == 1 + -(-max(tokens - 1, 0) // 32)
    if tokens:
        assert verdicts(server, claim_of(meta)) == ["pass"]
    assert validate(server, meta | {"output_ids": None}, meta[FINGERPRINTS][0]).status_code == 200


def test_verdicts(server: Server) -> None:
    """Many claims at once, each with its own verdict, in their order."""
    meta, other = (
        generate_with_fingerprints(server, prompt_of(60, 4)),
        generate_with_fingerprints(server, prompt_of(60, 5)),
    )
    ids = meta["output_ids"]
    good = claim_of(meta)
    shuffled = claim_of(meta, output_ids=[*ids[:1], *ids[1:40][::-1], *ids[40:]])
    another_prompt = claim_of(meta, input_ids=other["input_ids"])
    swapped = claim_of(meta, fingerprints=[*meta[FINGERPRINTS][:2], meta[FINGERPRINTS][1], meta[FINGERPRINTS][3]])
    forged = claim_of(meta, fingerprints=[*meta[FINGERPRINTS][:-1], _constant_polynomial(0x4040)])
    too_long = {"input_ids": [9] * 5000, "output_ids": [9], "fingerprints": meta[FINGERPRINTS][:1]}
    answer = post(
        server, "/v1/toploc/verify", {"claims": [good, shuffled, too_long, another_prompt, swapped, forged, good]}
    )
    results = answer.raise_for_status().json()["results"]
    expected = ["pass", "fail", "unverifiable", "fail", "fail", "fail", "pass"]
    assert [result["verdict"] for result in results] == expected
    assert results[0]["thresholds"] == {"exp_mismatches": 38, "mant_err_mean": 10.0, "mant_err_median": 8.0}
    assert len(results[0]["statistics"]) == 4
    assert results[3]["reason"].startswith("fingerprint 0: exp_mismatches ")
    assert results[4]["reason"].startswith("fingerprint 2: ")
    assert "context" in results[2]["reason"]


def test_claims_are_prefilled_together(server: Server) -> None:
    """All in one batch, and not the first one by itself while the others arrive; with judged sampling among them."""
    prompts = [prompt_of(30 + i, 70 + i) for i in range(12)]
    body = {"input_ids": prompts, "return_input_ids": True, "return_toploc_fingerprints": True}
    sampling = {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}
    answers = post(server, "/generate", body | {"sampling_params": sampling, "return_output_ids": True}).json()
    claims = [claim_of(answer["meta_info"]) for answer in answers]
    claims[5]["sampling"] = {"temperature": 0}
    post(server, "/flush_cache", {}).raise_for_status()
    seen = len(server.log)
    results = post(server, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()["results"]
    assert [result["verdict"] for result in results] == ["pass"] * 12
    assert ["sampling" in result for result in results] == [i == 5 for i in range(12)]
    assert re.findall(r"Prefill batch, #new-seq: (\d+)", server.log[seen:]) == ["12"]


def _constant_polynomial(value: int) -> str:
    """A forgery that needs no model: every value is claimed to be the same."""
    numbers = [65_497, value, *[0] * 127]
    return base64.b64encode(b"".join(number.to_bytes(2, "big") for number in numbers)).decode()


def test_another_model(server: Server, hf: HuggingFace, tmp_path: Path) -> None:
    """Fingerprints of Hugging Face's rows pass; those of the same model with other weights fail."""
    ids = prompt_of(100, 6)
    own, foreign = (_claim_from(model, ids) for model in (hf, HuggingFace(with_other_weights(tmp_path))))
    assert verdicts(server, own, foreign) == ["pass", "fail"]


def _claim_from(model: HuggingFace, ids: list[int]) -> Any:
    rows = torch.from_numpy(model.states(ids)).bfloat16()
    points = []
    for start, end in layout(40, 100):
        flat = rows[start:end].reshape(-1)
        places = flat.abs().topk(128).indices
        points.append(Points(places.numpy(), flat[places].view(torch.int16).numpy().view("<u2")))
    fingerprints = [one.to_base64() for one in codec.build(points)]
    return {"input_ids": ids[:40], "output_ids": [*ids[40:], 9], "fingerprints": fingerprints}


def streamed(server: Server, prompt: list[int], tokens: int, **fields: Any) -> tuple[list[int], Any]:
    """At how many tokens each fingerprint came, and the last chunk's ``meta_info`` with all of them."""
    body = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        "stream": True,
        "return_toploc_fingerprints": True,
        "return_input_ids": True,
        "return_output_ids": True,
        **fields,
    }
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    metas = [json.loads(line)["meta_info"] for line in lines]
    when = [meta["completion_tokens"] for meta in metas for _ in meta.get(FINGERPRINTS, [])]
    found = [one for meta in metas for one in meta.get(FINGERPRINTS, [])]
    return when, metas[-1] | {FINGERPRINTS: found}


def test_a_stream_sends_each_fingerprint_once_it_is_complete(server: Server) -> None:
    """The prompt's with the first token, then after each 32 rows, the rest with the last chunk."""
    when, meta = streamed(server, prompt_of(45, 7), 70)
    assert when == [1, 33, 65, 70]
    assert verdicts(server, claim_of(meta)) == ["pass"]


def test_chunks_retraction_and_mixed_batches(strained: Server, fingerprinting: Server) -> None:
    """The prover's prompts come in pieces and it starts again and again, streamed or not; the verifier's do not."""
    prompts = [prompt_of(30 + 9 * i, 20 + i) for i in range(10)]

    def prove(i: int) -> Any:
        return streamed(strained, prompts[i], 60)[1] if i % 2 else generate_with_fingerprints(strained, prompts[i], 60)

    with ThreadPoolExecutor(10) as pool:
        metas = list(pool.map(prove, range(10)))
    assert sum(meta["num_retractions"] for meta in metas) > 0
    assert verdicts(fingerprinting, *map(claim_of, metas)) == ["pass"] * 10
    assert verdicts(strained, *map(claim_of, metas)) == ["pass"] * 10
    wrong = [
        claim_of(meta, fingerprints=other[FINGERPRINTS]) for meta, other in zip(metas[::2], metas[1::2], strict=True)
    ]
    assert verdicts(strained, *[one for one in wrong if len(one["fingerprints"]) == 3]) == ["fail"] * 5


def test_samples(server: Server) -> None:
    """Each of two samples has its own, from a cached prompt."""
    body = {
        "input_ids": prompt_of(33, 40),
        "sampling_params": {"max_new_tokens": 40, "n": 2, "temperature": 1.5, "ignore_eos": True},
        "return_toploc_fingerprints": True,
        "return_input_ids": True,
        "return_output_ids": True,
    }
    metas = [answer["meta_info"] for answer in post(server, "/generate", body).raise_for_status().json()]
    assert metas[0]["output_ids"] != metas[1]["output_ids"]
    # Not by verdict: two samples may share so much that one passes for the other.
    assert metas[0][FINGERPRINTS][1:] != metas[1][FINGERPRINTS][1:]
    assert verdicts(server, *map(claim_of, metas)) == ["pass", "pass"]


def test_a_nonce_selects_the_rows(server: Server) -> None:
    """What was proven for one verifier is worth nothing to another."""
    meta = generate_with_fingerprints(server, prompt_of(50, 50), toploc_nonce="first")
    claims = [claim_of(meta, nonce="first"), claim_of(meta, nonce="second"), claim_of(meta)]
    assert verdicts(server, *claims) == ["pass", "fail", "fail"]


def test_every_response_unless_it_says_no(fingerprinting: Server) -> None:
    """``--toploc-verification``; batches too. Embeddings have none."""
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    body = {"text": ["import os\n", "import re\n"], "sampling_params": sampling}
    assert [len(one["meta_info"][FINGERPRINTS]) for one in post(fingerprinting, "/generate", body).json()] == [2, 2]
    refused = post(fingerprinting, "/generate", body | {"return_toploc_fingerprints": False}).raise_for_status().json()
    assert [FINGERPRINTS in one["meta_info"] for one in refused] == [False, False]
    assert post(fingerprinting, "/v1/embeddings", {"model": "tiny", "input": "import os\n"}).status_code == 200


def test_thresholds_of_a_file(server_pool: ServerPool, tmp_path: Path) -> None:
    """They are in force and told: what is near enough by default fails."""
    strict = {"exp_mismatches": 0, "mant_err_mean": 0.0, "mant_err_median": 0.0}
    path = tmp_path / "thresholds.json"
    path.write_text(json.dumps({"thresholds": strict, "topk": 128}))
    server = server_pool.get("--toploc-verification", "--toploc-thresholds", str(path))
    meta = generate_with_fingerprints(server, prompt_of(60, 80))
    prompt = meta["input_ids"]
    near = claim_of(meta, input_ids=[*prompt[:30], prompt[30] ^ 1, *prompt[31:]])
    (result,) = post(server, "/v1/toploc/verify", {"claims": [near]}).raise_for_status().json()["results"]
    statistics = [Distance(**one) for one in result["statistics"]]
    assert Thresholds().why_failed(statistics, [128] * 4) == ""
    assert result["thresholds"] == strict
    assert (result["verdict"], result["reason"]) == ("fail", Thresholds(0, 0, 0).why_failed(statistics, [128] * 4))


def test_sampling(server: Server) -> None:
    """A greedy answer has no gap; one drawn at a high temperature is not greedy; the verdict is apart."""
    honest = claim_of(generate_with_fingerprints(server, prompt_of(40, 60), 40), sampling={"temperature": 0})
    wild = generate_with_fingerprints(server, prompt_of(40, 61), 40, sampling={"temperature": 5.0})
    claims = [honest, claim_of(wild, sampling={"temperature": 0}), claim_of(wild, sampling={"temperature": 5.0})]
    results = post(server, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()["results"]
    assert [result["verdict"] for result in results] == ["pass"] * 3
    first, second, third = (result["sampling"] for result in results)
    assert (first["tokens"], first["gap_max"] < 0.01) == (39, True)
    assert second["mismatches"] > 20
    assert (third["mismatches"], third["gap_max"]) == (0, 0)


def test_the_command_line(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``tessera verify``: 0, 1 and 2."""
    sampling = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
    body = {"text": "def peek(self):", "sampling_params": sampling}
    requested = {"return_toploc_fingerprints": True, "return_input_ids": True, "return_output_ids": True}
    path = tmp_path / "response.json"
    saved = post(server, "/generate", body | requested).json()
    path.write_text(json.dumps(saved))
    assert main(["verify", str(path), "--server", server.url]) == 0
    assert "response 0: PASS" in capsys.readouterr().out
    saved["meta_info"]["output_ids"].reverse()
    path.write_text(json.dumps([saved]))
    assert main(["verify", str(path), "--server", server.url]) == 1
    assert "response 0: FAIL fingerprint 1: " in capsys.readouterr().out
    path.write_text(json.dumps(post(server, "/generate", body).json()))
    assert main(["verify", str(path), "--server", server.url]) == 2
    assert "was not asked for with return_input_ids" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "missing.json"), "--server", server.url]) == 2
