"""Pages of several slots, FP8 KV, quantized weights, rows in the host's memory: rows, fingerprints, TileSpec."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tessera.capabilities.fingerprints.calibration.distances import count_accepted
from tessera.capabilities.fingerprints.calibration.prover import ask, check
from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.launching.server import Server
from tessera_testing.canary import Canary, canaries, fly, judge
from tessera_testing.claims import claim_of, prove_and_verify, verdicts
from tessera_testing.drafts import TREE, chain, code_and_noise, drafting, retracting
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import generate
from tessera_testing.injected import rows_of
from tessera_testing.pool import ServerPool
from tessera_testing.quantized import fp8_reference, write_awq
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import SMALL
from tessera_testing.tiny import TINY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COMMON = (
    *("--enable-return-hidden-states", "--toploc-verification", *SMALL),
    *("--chunked-prefill-size", "128", "--cuda-graph-bs-decode", "1", "2", "4", "8", "16", "32"),
)
"""A chunk is a multiple of a page."""
FA3 = ("--dtype", "bfloat16", "--attention-backend", "fa3")
TILE = ("--tile-spec", "--speculative-draft-attention-backend", "triton", "--max-running-requests", "16")
DRAFTS = {
    "plain": ("--enable-injection",),
    "chain": (*drafting("EAGLE3", chain(5)), *TILE),
    "tree": (*drafting("EAGLE3", TREE), *TILE),
}
DRAFTS |= {f"{name}-on-host": (*DRAFTS[name], "--rows-on-host") for name in ("plain", "chain")}
TRUNK = [random.Random("trunk").randrange(8, 1000) for _ in range(300)]
"""Of most prompts: two pages of 128 and more."""
SHORTFALL = 0.5
"""How far below the best logit a token may be, by the reference, in bfloat16."""
LOG_PROBABILITY = 0.2
"""How far a log-probability may be from that of the row: SGLang's logits are rounded to bfloat16."""


class Quantized(NamedTuple):
    """What is quantized, and the least cosines to the reference: of rows at most and of means."""

    options: tuple[str, ...]
    of_rows: float
    of_means: float
    prepare: Callable[[Path], tuple[Path, HuggingFace]]
    fault: str = ""


def awq(folder: Path) -> tuple[Path, HuggingFace]:
    """The model with AWQ weights, and what they come to."""
    served, reference = write_awq(folder)
    return served, HuggingFace(reference)


# Of FP8, the cosines on an H200 were 0.998 (KV, to float32) and 0.996 (weights) for rows, 0.999 and 0.996 for means.
QUANTIZED = {
    "fp8-kv": Quantized(
        ("--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e4m3"), 0.99, 0.998, lambda _: (TINY, HuggingFace(TINY))
    ),
    "fp8-weights": Quantized(
        ("--dtype", "bfloat16", "--quantization", "fp8"), 0.98, 0.995, lambda _: (TINY, fp8_reference())
    ),
    "awq": Quantized(("--dtype", "float16", "--quantization", "awq"), 0.999, 0.9999, awq, "awq-in-triton"),
}


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("page", ["16", "64", "128"])
def test_pages(server_pool: ServerPool, hf: HuggingFace, page: str, drafts: str) -> None:
    """400 requests, 32 at once, chunks and retraction; drafts of every size."""
    args = (*COMMON, *FA3, "--page-size", page, "--max-total-tokens", "16384", *DRAFTS[drafts])
    plain = drafts.startswith("plain")
    server = server_pool.get(*args, env=retracting(7) | ({} if plain else {"TESSERA_TEST_FAULT": "dice"}))
    name = f"page {page} {drafts}"
    flock = flock_of(400, injecting=0.3 if plain else 0)
    answers = check_canaries(name, server, flock, hf, of_rows=0.999, of_means=0.9999)
    pairs = [
        (canary.prompt, answer["output_ids"])
        for canary, answer in zip(flock, answers, strict=True)
        if answer is not None and canary.max_new_tokens and not canary.injected
    ]
    worst = max(hf.shortfall(*pair) for pair in pairs)
    metas = [answer["meta_info"] for answer in answers if answer is not None]
    drafted = sum(meta.get("spec_num_correct_drafts", 0) for meta in metas)
    print(f"\nMEASURED {name}: worst shortfall {worst:.4f}, {drafted} drafts accepted")  # noqa: T201 - run by hand
    assert worst <= SHORTFALL
    assert plain or drafted > 20
    # Trees go through FlashInfer's top-p, which a host without a compiler may lack.
    check_fingerprints(name, server, hf, sampled=drafts != "tree")


@pytest.mark.parametrize("what", QUANTIZED)
def test_quantized(server_pool: ServerPool, tmp_path: Path, what: str) -> None:
    """Rows times the head are SGLang's own log-probabilities; canaries against a reference that rounds as it does."""
    torch.set_num_threads(4)  # as the fixture of the reference
    case = QUANTIZED[what]
    served, hf = case.prepare(tmp_path)
    # The only attention that reads FP8 and float16 on every host.
    args = (*COMMON, "--attention-backend", "triton", *case.options)
    server = server_pool.get(*args, model=served, env=retracting(7) | {"TESSERA_TEST_FAULT": case.fault})
    check_log_probabilities(what, server, hf)
    check_canaries(what, server, flock_of(300), hf, case.of_rows, case.of_means)
    check_fingerprints(what, server, hf)


def flock_of(count: int, injecting: float = 0) -> list[Canary]:
    """Canaries that all begin with the trunk, of which some are injected into."""
    drawn = canaries(count, vocabulary=1000, seed=17, leaving=0.05, injecting=injecting)
    return [replace(canary, prompt=(*TRUNK, *canary.prompt)) for canary in drawn]


def check_canaries(
    name: str, server: Server, flock: list[Canary], hf: HuggingFace, of_rows: float, of_means: float
) -> list[dict[str, Any] | None]:
    """Each answer has its own vector, and most begin with cached pages."""
    answers = fly(server.url, flock, at_once=32)
    verdicts = judge(flock, answers, hf)
    answered = [canary for canary, answer in zip(flock, answers, strict=True) if answer is not None]
    means = [v.cosine for c, v in zip(answered, verdicts, strict=True) if c.options and c.options["pooling"] == "mean"]
    least = min(verdict.cosine for verdict in verdicts)
    cached = sum(verdict.cached >= 128 for verdict in verdicts)
    print(  # noqa: T201 - the figures are what a run by hand is for
        f"\nMEASURED {name}: {len(verdicts)} answers, {cached} of them with a cached prefix, "
        f"least cosine {least:.6f}, of means {min(means):.6f}"
    )
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert cached > len(verdicts) / 3
    assert min(means) >= of_means
    assert least >= of_rows
    return answers


def check_log_probabilities(name: str, server: Server, hf: HuggingFace) -> None:
    """Of a prompt, and of what is generated after a cached one."""
    requested: dict[str, Any] = {"return_hidden_states": True, "hidden_states_format": "base64", "return_logprob": True}
    differences = []
    for start, key in ((0, "input_token_logprobs"), (-1, "output_token_logprobs")):
        answer = generate(server, TRUNK, 40, **requested, logprob_start_len=start)
        rows = rows_of(answer).astype(np.float64)
        found = [(value, token) for value, token, _ in answer["meta_info"][key] if value is not None]
        scores = hf.logits(rows)[: len(TRUNK) - 1] if start == 0 else hf.logits(rows)[len(TRUNK) - 1 :]
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        assert len(found) == len(scores)
        differences += [abs(value - scores[place, token]) for place, (value, token) in enumerate(found)]
    print(f"\nMEASURED {name}: log-probabilities differ by {max(differences):.4f}")  # noqa: T201 - run by hand
    assert max(differences) <= LOG_PROBABILITY


def check_fingerprints(name: str, server: Server, hf: HuggingFace, *, sampled: bool = True) -> None:
    """Honest ones pass, greedy and sampled; another's, and those of another prompt, do not."""
    prompts = [[*TRUNK[:200], *ids] for ids in code_and_noise(hf.tokenizer, seed=17)]
    claim = claim_of(prove_and_verify(server, prompts)[-1])
    assert verdicts(server, claim, {**claim, "input_ids": claim["input_ids"][::-1]}) == ["pass", "fail"]
    if not sampled:
        return
    responses = ask(server.url, 20, 100)
    flush_cache(server)
    measured = check(server.url, responses)
    worst = max(distance for one in measured for distance in one.distances)
    print(f"\nMEASURED {name}: worst fingerprint {worst}")  # noqa: T201 - what a run by hand is for
    assert count_accepted(measured, Thresholds()) == 20
