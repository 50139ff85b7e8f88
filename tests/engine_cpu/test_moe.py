"""A mixture of experts, with everything on at once: drafts of every length, rows, fingerprints and injection.

STANDALONE drafts of the dense model's own draft, sized by dice, and requests that are retracted; in one process, and
with the experts spread over two.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tessera.capabilities.fingerprints.answer import FINGERPRINTS
from tessera.launching.server import Server
from tessera_testing.claims import verdicts
from tessera_testing.drafts import chain, code_and_noise, drafting, retracting
from tessera_testing.endpoints import flush_cache
from tessera_testing.generate import generate
from tessera_testing.injected import rows_of
from tessera_testing.librarys import build_proofs_base64
from tessera_testing.marks import only_in_full
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.starts import RANKS_ON_CPUS, TWO_RANKS
from tessera_testing.tiny import TINY_MOE

FLOAT32_ERROR = 1e-5
ENV = {"TESSERA_TEST_FAULT": "dice", **retracting(7)}
OPTIONS = (
    "--enable-return-hidden-states",
    "--enable-injection",
    *drafting("STANDALONE", chain(5)),
    "--tile-spec",
)
RANKS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "one rank": ((), {}),
    "two ranks": ((*TWO_RANKS, "--ep-size", "2"), RANKS_ON_CPUS),
}


@pytest.fixture(scope="module")
def moe() -> HuggingFace:
    """The reference of the mixture of experts."""
    return HuggingFace(TINY_MOE)


@pytest.fixture(params=["two ranks", *only_in_full("one rank")])
def experts(server_pool: ServerPool, request: pytest.FixtureRequest) -> Server:
    """The servers of all tests here. Of two ranks each has half of the experts, heads and vocabulary."""
    options, env = RANKS[request.param]
    return server_pool.get(*OPTIONS, *options, model=TINY_MOE, env=ENV | env)


def ask(server: Server, prompt: list[int], **fields: Any) -> Any:
    """40 tokens, with all that can be asked for."""
    requested: dict[str, Any] = {"return_embedding": {"over": "all"}, "return_toploc_fingerprints": True}
    rows: dict[str, Any] = {"return_hidden_states": True, "hidden_states_format": "base64"}
    return generate(server, prompt, 40, **requested, **rows, **fields)


def check(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Every row is the reference's: one expert chosen otherwise would show in its row."""
    assert found.shape == expected.shape
    assert max(relative_error(row, other) for row, other in zip(found, expected, strict=True)) <= FLOAT32_ERROR * 10


def test_tokens_rows_and_embeddings(experts: Server, moe: HuggingFace) -> None:
    """Hugging Face's own, cold, whatever was drafted, verified together and retracted; and some drafts were right."""
    prompts = code_and_noise(moe.tokenizer, seed=1)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda prompt: ask(experts, prompt), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        output = answer["output_ids"]
        fed = [*prompt, *output[:-1]]
        assert output == moe.favourites(fed)[len(prompt) - 1 :]
        check(rows_of(answer), moe.states(fed))
        assert relative_error(answer["meta_info"]["embedding"], moe.pooled(prompt, output, "mean", "all")) <= 1e-5
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 20


def test_fingerprints(experts: Server, moe: HuggingFace, hf: HuggingFace) -> None:
    """The library's, of the rows; verified by a prefill, which chooses experts for all tokens at once.

    Those of the dense model that this one was distilled from do not pass.
    """
    prompts = code_and_noise(moe.tokenizer, seed=2)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda prompt: ask(experts, prompt), prompts))
    claims = []
    for prompt, answer in zip(prompts, answers, strict=True):
        found = answer["meta_info"][FINGERPRINTS]
        rows = torch.from_numpy(rows_of(answer).copy()).bfloat16()
        assert found == build_proofs_base64([rows[: len(prompt)], *rows[len(prompt) :]], 32, 128)
        claims.append({"input_ids": prompt, "output_ids": answer["output_ids"], "fingerprints": found})
    dense = torch.from_numpy(hf.states([*prompts[-1], *claims[-1]["output_ids"][:-1]])).bfloat16()
    forged = build_proofs_base64([dense[: len(prompts[-1])], *dense[len(prompts[-1]) :]], 32, 128)
    flush_cache(experts)
    found = verdicts(experts, *claims, {**claims[-1], "fingerprints": forged})
    assert found == ["pass"] * len(claims) + ["fail"]


def test_injection(experts: Server, moe: HuggingFace) -> None:
    """Vectors in place of tokens choose experts too: rows, tokens and embedding are the reference's with that edit."""
    prompt, places = code_and_noise(moe.tokenizer, seed=3)[-1], [0, 20, 69]
    vectors = (np.random.default_rng(3).standard_normal((3, 256)) / 16).astype("<f4")

    def edit(embeds: torch.Tensor) -> torch.Tensor:
        embeds[places] = torch.from_numpy(vectors)
        return embeds

    override = {
        "positions": places,
        "embeds": base64.b64encode(vectors.tobytes()).decode(),
        "shape": [3, 256],
        "dtype": "float32",
    }
    answer = ask(experts, prompt, input_embed_overrides=override)
    output = answer["output_ids"]
    fed = [*prompt, *output[:-1]]
    assert output == moe.favourites(fed, edit)[len(prompt) - 1 :]
    check(rows_of(answer), moe.edited(fed, edit))
    assert relative_error(rows_of(answer), moe.states(fed)) > 0.01  # the vectors matter
