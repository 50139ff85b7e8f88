"""TOPLOC fingerprints of the real server: made, compared with the library's, and verified."""

from __future__ import annotations

import base64
import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from toploc.poly import build_proofs_base64

from tessera.cli import main
from tessera.fingerprint import codec
from tessera.fingerprint.chunks import layout
from tessera.fingerprint.codec import Points
from tessera.fingerprint.thresholds import Thresholds
from tessera.fingerprint.verifier import Distance
from tessera.testing.pool import ServerPool
from tessera.testing.reference import HuggingFace
from tessera.testing.server import Server
from tessera.testing.tiny import TINY

CLAIM = "toploc_verification_fingerprint_to_validate"
RESULT = "toploc_verification_fingerprint_validation_result"
FINGERPRINTS = "toploc_verification_fingerprints"


def prompt_of(length: int, seed: int) -> list[int]:
    """A prompt that no other test has sent."""
    chooser = random.Random(f"toploc {seed}")
    return [chooser.randrange(8, 1000) for _ in range(length)]


def post(server: Server, path: str, body: Any) -> httpx.Response:
    """One request."""
    return httpx.post(server.url + path, json=body, timeout=120)


def generate(server: Server, prompt: list[int], tokens: int = 70, **fields: Any) -> Any:
    """``meta_info`` of a greedy answer with fingerprints and all ids."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields.pop("sampling", {})}
    asked = {"return_toploc_fingerprints": True, "return_input_ids": True, "return_output_ids": True, **fields}
    answer = post(server, "/generate", {"input_ids": prompt, "sampling_params": sampling, **asked})
    return answer.raise_for_status().json()["meta_info"]


def claim_of(meta: Any, **changes: Any) -> Any:
    """What ``/v1/toploc/verify`` takes."""
    return {
        "input_ids": meta["input_ids"],
        "output_ids": meta["output_ids"],
        "fingerprints": meta[FINGERPRINTS],
    } | changes


def verdicts(server: Server, *claims: Any) -> list[str]:
    """In the order of the claims."""
    answer = post(server, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()
    return [result["verdict"] for result in answer["results"]]


def validate(server: Server, meta: Any, claim: Any) -> Any:
    """The way of the guide, by exact ids."""
    body = {"input_ids": meta["input_ids"], "output_ids": meta["output_ids"], CLAIM: claim}
    return post(server, "/generate", body | {"sampling_params": {"max_new_tokens": 0}})


def test_fingerprints_are_the_librarys(server: Server) -> None:
    """Prompt, 32 rows, 32 rows, the rest: byte by byte what the library builds from the raw states."""
    meta = generate(server, prompt_of(50, 1), return_hidden_states=True, hidden_states_format="base64")
    assert meta[FINGERPRINTS] == _librarys(meta, 50)
    assert [len(one) for one in meta[FINGERPRINTS]] == [344] * 4
    assert (len(meta["input_ids"]), len(meta["output_ids"])) == (50, 70)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_models_of_half_precision(server_pool: ServerPool, dtype: str) -> None:
    """Their fingerprints are the library's too, and are verified by a prefill."""
    server = server_pool.get("--enable-return-hidden-states", "--dtype", dtype)
    meta = generate(server, prompt_of(50, 80), return_hidden_states=True, hidden_states_format="base64")
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
        asked = {"return_hidden_states": True, "hidden_states_format": "base64"}
        return generate(server, prompt_of(length, length), lengths[length], **asked)

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
    meta = generate(server, prompt_of(40, 2))
    last = json.loads(validate(server, meta, meta[FINGERPRINTS][-1]).json()["meta_info"][RESULT])
    every = json.loads(validate(server, meta, meta[FINGERPRINTS]).json()["meta_info"][RESULT])
    assert last == every[-1]
    assert [one["exp_mismatches"] <= 8 and one["mant_err_mean"] <= 2 for one in every] == [True] * 4
    assert set(last) == {"exp_mismatches", "mant_err_mean", "mant_err_median"}


@pytest.mark.parametrize("tokens", [0, 1, 2, 32, 33, 34])
def test_lengths(server: Server, tokens: int) -> None:
    """Around the edges of a chunk; a response of no token proves its prompt, and can be validated by it."""
    meta = generate(server, prompt_of(20, 3), tokens)
    assert len(meta[FINGERPRINTS]) == 1 + -(-max(tokens - 1, 0) // 32)
    if tokens:
        assert verdicts(server, claim_of(meta)) == ["pass"]
    assert validate(server, meta | {"output_ids": None}, meta[FINGERPRINTS][0]).status_code == 200


def test_verdicts(server: Server) -> None:
    """Many claims at once, each with its own verdict, in their order."""
    meta, other = generate(server, prompt_of(60, 4)), generate(server, prompt_of(60, 5))
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
    for path in TINY.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (weight.float() * (1 + 0.1 * torch.randn(weight.shape, generator=generator))).to(weight.dtype)
        for name, weight in load_file(TINY / "model.safetensors").items()
    }
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    own, foreign = (_claim_from(model, ids) for model in (hf, HuggingFace(tmp_path)))
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


def test_chunks_retraction_and_mixed_batches(server: Server, strained: Server) -> None:
    """The prover's prompts come in pieces and it starts again and again, streamed or not; the verifier's do not."""
    prompts = [prompt_of(30 + 9 * i, 20 + i) for i in range(10)]

    def prove(i: int) -> Any:
        return streamed(strained, prompts[i], 60)[1] if i % 2 else generate(strained, prompts[i], 60)

    with ThreadPoolExecutor(10) as pool:
        metas = list(pool.map(prove, range(10)))
    assert sum(meta["num_retractions"] for meta in metas) > 0
    assert verdicts(server, *map(claim_of, metas)) == ["pass"] * 10
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
    meta = generate(server, prompt_of(50, 50), toploc_nonce="first")
    claims = [claim_of(meta, nonce="first"), claim_of(meta, nonce="second"), claim_of(meta)]
    assert verdicts(server, *claims) == ["pass", "fail", "fail"]


MESSAGES = [{"role": "user", "content": "def push(self, item):"}]


def answer_to(server: Server, messages: Any) -> Any:
    """The choice of a greedy chat; of all that ask this the same."""
    asked = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 45}
    return post(server, "/v1/chat/completions", asked).raise_for_status().json()["choices"][0]


def validate_chat(server: Server, prompt: Any, answer: str, claim: Any) -> Any:
    """The way of the guide, by messages."""
    messages = [*prompt, {"role": "assistant", "content": answer}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 0, CLAIM: claim}
    validated = post(server, "/v1/chat/completions", body).raise_for_status().json()
    return json.loads(validated["choices"][0]["message"][RESULT])


def test_chat_as_in_the_guide(fingerprinting: Server) -> None:
    """``--toploc-verification``: fingerprints in the message; verified by messages, with ``max_tokens`` 0."""
    choice = answer_to(fingerprinting, MESSAGES)
    text, fingerprints = choice["message"]["content"], choice["message"][FINGERPRINTS]
    assert len(fingerprints) == 1 + -(-44 // 32) or choice["finish_reason"] == "stop"
    assert validate_chat(fingerprinting, MESSAGES, text, fingerprints[-1])["exp_mismatches"] <= 8
    every = validate_chat(fingerprinting, MESSAGES, text, fingerprints)
    assert [one["exp_mismatches"] <= 8 for one in every] == [True] * len(fingerprints)


def test_chat_with_another_prompt(fingerprinting: Server) -> None:
    """The guide's way detects it, by the prompt's own fingerprint and by the last one alone."""
    message = answer_to(fingerprinting, MESSAGES)["message"]
    prompt = [{"role": "user", "content": "import os, sys\nclass Queue:\n    def __init__(self):\n        pass"}]
    every = validate_chat(fingerprinting, prompt, message["content"], message[FINGERPRINTS])
    last = validate_chat(fingerprinting, prompt, message["content"], message[FINGERPRINTS][-1])
    assert every[-1] == last
    assert [one["exp_mismatches"] > 38 for one in (every[0], last)] == [True, True]


def test_chat_with_another_answer(fingerprinting: Server) -> None:
    """To the same prompt: its fingerprint holds, and the guide's way detects the answer by the last one alone."""
    message = answer_to(fingerprinting, MESSAGES)["message"]
    other = answer_to(fingerprinting, [{"role": "user", "content": "class Queue:"}])["message"]["content"]
    for text in (other, message["content"][::-1], "Sofia"):
        last = validate_chat(fingerprinting, MESSAGES, text, message[FINGERPRINTS][-1])
        assert last["exp_mismatches"] > 38, text
    every = validate_chat(fingerprinting, MESSAGES, other, message[FINGERPRINTS])
    assert [one["exp_mismatches"] > 38 for one in every] == [False, True, True]


def test_chat_by_ids(fingerprinting: Server) -> None:
    """``input_ids`` and ``output_ids`` are the response, whatever the messages say; alone the latter are refused."""
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    shown = {"return_input_ids": True, "return_output_ids": True}
    answer = post(fingerprinting, "/v1/chat/completions", asked | shown).raise_for_status().json()
    (choice,) = answer["choices"]
    fingerprints = choice["message"][FINGERPRINTS]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    ids = {"input_ids": choice["input_ids"], "output_ids": choice["output_ids"]}
    body = {"model": "tiny", "messages": messages, "max_tokens": 0, CLAIM: fingerprints, **ids}

    def told(**changes: Any) -> Any:
        return post(fingerprinting, "/v1/chat/completions", body | changes)

    def mismatches(**changes: Any) -> list[int]:
        (validated,) = told(**changes).raise_for_status().json()["choices"]
        return [one["exp_mismatches"] for one in json.loads(validated["message"][RESULT])]

    assert max(mismatches()) <= 8
    assert mismatches(output_ids=ids["output_ids"][::-1])[1] > 38
    refused: list[dict[str, Any]] = [{CLAIM: None, "max_tokens": 4}, {"input_ids": None}, {"output_ids": [1024]}]
    for change in refused:
        answered = told(**change)
        assert answered.status_code == 400, change
        assert answered.json()["error"]["param"].startswith("output_ids")


def choices_of(server: Server, path: str, body: Any) -> list[Any]:
    """The choices of a stream's chunks, in their order."""
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def test_chat_streams(fingerprinting: Server) -> None:
    """In the chunk that completes it, long before the last one; ids of each choice with the last one."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "def pop(self):"}],
        "max_tokens": 140,
        "ignore_eos": True,
        "return_input_ids": True,
        "return_output_ids": True,
    }
    choices = choices_of(fingerprinting, "/v1/chat/completions", body)
    found = [one for choice in choices for one in choice["delta"].get(FINGERPRINTS, [])]
    ids = {name: choice[name] for choice in choices for name in ("input_ids", "output_ids") if name in choice}
    assert len(ids["output_ids"]) == 140
    assert verdicts(fingerprinting, {**ids, "fingerprints": found}) == ["pass"]
    where = [i for i, choice in enumerate(choices) for _ in choice["delta"].get(FINGERPRINTS, [])]
    (end,) = (i for i, choice in enumerate(choices) if choice["finish_reason"])
    assert len(where) == 1 + -(-139 // 32)
    assert (where[0], where[1] < end) == (0, True)  # a server that has to wait puts several tokens into a chunk


def test_completions_stream(server: Server) -> None:
    """The same fingerprints as in one piece, each once, in the chunk that completes it."""
    asked = {"return_toploc_fingerprints": True, "return_input_ids": True, "return_output_ids": True}
    body = {"model": "tiny", "prompt": prompt_of(40, 70), "max_tokens": 140, "temperature": 0, "ignore_eos": True}
    choices = choices_of(server, "/v1/completions", body | asked)
    # From nothing, as the first time: rows of a cached prompt are those of another batch.
    httpx.post(f"{server.url}/flush_cache?timeout=30", timeout=60).raise_for_status()
    (whole,) = post(server, "/v1/completions", body | asked).raise_for_status().json()["choices"]
    assert [one for choice in choices for one in choice.get(FINGERPRINTS, [])] == whole[FINGERPRINTS]
    ids = {name: choice[name] for choice in choices for name in ("input_ids", "output_ids") if name in choice}
    assert ids == {name: whole[name] for name in ids}
    assert len(ids["output_ids"]) == 140
    where = [i for i, choice in enumerate(choices) for _ in choice.get(FINGERPRINTS, [])]
    (end,) = (i for i, choice in enumerate(choices) if choice["finish_reason"])
    assert len(where) == 1 + -(-139 // 32)
    assert (where[0], where[1] < end) == (0, True)


def test_completions(fingerprinting: Server) -> None:
    """On the choice; verified by ids, with ``max_tokens`` 0, which other completions may not have."""
    body = {"model": "tiny", "prompt": "import os\n", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    answer = post(fingerprinting, "/v1/completions", body | {"return_input_ids": True, "return_output_ids": True})
    (choice,) = answer.raise_for_status().json()["choices"]
    assert verdicts(fingerprinting, claim_of(choice)) == ["pass"]
    claim = {
        "prompt": choice["input_ids"],
        "output_ids": choice["output_ids"],
        "max_tokens": 0,
        CLAIM: choice[FINGERPRINTS],
    }
    answer = post(fingerprinting, "/v1/completions", {"model": "tiny", **claim})
    (validated,) = answer.raise_for_status().json()["choices"]
    assert [one["exp_mismatches"] <= 8 for one in json.loads(validated[RESULT])] == [True] * 3
    assert post(fingerprinting, "/v1/completions", body | {"max_tokens": 0}).status_code == 400


def test_every_response_unless_it_says_no(fingerprinting: Server) -> None:
    """``--toploc-verification``; batches too. Embeddings have none."""
    body = {"text": ["import os\n", "import re\n"], "sampling_params": {"max_new_tokens": 4}}
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
    meta = generate(server, prompt_of(60, 80))
    prompt = meta["input_ids"]
    near = claim_of(meta, input_ids=[*prompt[:30], prompt[30] ^ 1, *prompt[31:]])
    (result,) = post(server, "/v1/toploc/verify", {"claims": [near]}).raise_for_status().json()["results"]
    statistics = [Distance(**one) for one in result["statistics"]]
    assert Thresholds().why_failed(statistics, [128] * 4) == ""
    assert result["thresholds"] == strict
    assert (result["verdict"], result["reason"]) == ("fail", Thresholds(0, 0, 0).why_failed(statistics, [128] * 4))


def test_without_the_flags(bare: Server) -> None:
    """A server that keeps no rows names the flags."""
    body = {"text": "import os\n", "sampling_params": {"max_new_tokens": 1}}
    for name in ("return_toploc_fingerprints", "return_input_ids", "return_output_ids"):
        answer = post(bare, "/generate", body | {name: True})
        assert answer.status_code == 400
        assert "--toploc-verification" in answer.json()["error"]["message"]
    assert post(bare, "/v1/toploc/verify", {"claims": []}).status_code == 404
    assert post(bare, "/generate", body | {"return_toploc_fingerprints": False}).status_code == 200


def test_sampling(server: Server) -> None:
    """A greedy answer has no gap; one drawn at a high temperature is not greedy; the verdict is apart."""
    honest = claim_of(generate(server, prompt_of(40, 60), 40), sampling={"temperature": 0})
    wild = generate(server, prompt_of(40, 61), 40, sampling={"temperature": 5.0})
    claims = [honest, claim_of(wild, sampling={"temperature": 0}), claim_of(wild, sampling={"temperature": 5.0})]
    results = post(server, "/v1/toploc/verify", {"claims": claims}).raise_for_status().json()["results"]
    assert [result["verdict"] for result in results] == ["pass"] * 3
    first, second, third = (result["sampling"] for result in results)
    assert (first["tokens"], first["gap_max"] < 0.01) == (39, True)
    assert second["mismatches"] > 20
    assert (third["mismatches"], third["gap_max"]) == (0, 0)


_BAD_IDS: list[Any] = [[], [-1], [1024], [2**70], ["1"], [1.5], [True], None, "text"]
_BAD_NONCES: list[Any] = ["", "n" * 129, 7, []]


def test_hostile_bodies(server: Server) -> None:
    """Each gets a 400 that names its field, and the next good claim its verdict."""
    good = claim_of(generate(server, prompt_of(30, 90), 40))
    prints = good["fingerprints"]
    sets: list[Any] = ["/9k=", ["/9k="] * 3, prints[:2], [*prints, prints[0]], [None] * 3, {}, prints * 33_334]
    singles: list[Any] = ["", "!!!!", prints[0][:-4], prints[0] + "AAAA", 7, ["x"], "A" * 344, "A" * 10_000_000]
    bad: list[dict[str, Any]] = [
        *({"fingerprints": value} for value in [*sets, *([*prints[:2], single] for single in singles)]),
        *({"input_ids": value} for value in _BAD_IDS),
        *({"output_ids": value} for value in _BAD_IDS),
        *({"nonce": value} for value in _BAD_NONCES),
        *({"sampling": value} for value in (1, {"temperature": -1}, {"top_p": "x"}, {"seed": 2**64}, {"x": 1})),
        {"model": "x"},
    ]
    for change in bad:
        answer = post(server, "/v1/toploc/verify", {"claims": [good, good | change]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(f"claims[1].{next(iter(change))}")
        assert len(answer.text) < 1000
    whole: list[Any] = [
        {},
        {"claims": []},
        {"claims": [good] * 513},
        {"claims": [1]},
        {"claims": [good], "x": 1},
        [],
        7,
    ]
    for body in whole:
        assert post(server, "/v1/toploc/verify", body).status_code == 400
    sampling = {"sampling_params": {"max_new_tokens": 0}}
    ids = {"input_ids": good["input_ids"], "output_ids": good["output_ids"]}
    for fields in (
        {**ids, **sampling, CLAIM: "/9k="},
        {**ids, **sampling, CLAIM: []},
        {**ids, **sampling, CLAIM: prints[:2]},
        {**ids, **sampling, CLAIM: good["fingerprints"], "toploc_nonce": 5},
        {**ids, CLAIM: prints},
        {**ids, **sampling},
        {"text": "x", "output_ids": [9], **sampling, CLAIM: prints[:1]},
        {"text": ["x", "y"], **sampling, CLAIM: prints[:1]},
        {"text": "x", **sampling, CLAIM: base64.b64encode(b"\xff\xd9" + bytes(64)).decode()},
        {"text": "x", **sampling, "return_toploc_fingerprints": "yes"},
        {"text": "x", **sampling, "return_input_ids": 1},
    ):
        answer = post(server, "/generate", fields)
        assert answer.status_code == 400, fields
        assert answer.json()["error"]["code"] in ("bad_request", "bad_fingerprint")
    assert verdicts(server, good) == ["pass"]


def test_the_command_line(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``tessera verify``: 0, 1 and 2."""
    body = {"text": "def peek(self):", "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}}
    asked = {"return_toploc_fingerprints": True, "return_input_ids": True, "return_output_ids": True}
    path = tmp_path / "response.json"
    saved = post(server, "/generate", body | asked).json()
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
