"""Speculative decoding on the CPU engine: the same tokens as without it, greedily, in float32."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from tessera.testing.pool import ServerPool
from tessera.testing.reference import HuggingFace
from tessera.testing.server import Server
from tessera.testing.tiny import TINY_DRAFT

# SGLang's own C++ of the n-gram corpus lacks an include that GCC 12 asks for.
NGRAM_ENV = {"CXX": "c++ -include cstddef"}
CHAIN = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
TREE = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8")
STANDALONE = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(TINY_DRAFT))
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")
SERVERS: dict[str, tuple[str, ...]] = {
    "standalone-chain": (*STANDALONE, *CHAIN),
    "standalone-tree": (*STANDALONE, *TREE),
    "ngram": NGRAM,
}
PROMPTS = [
    "def main():\n    import",
    "class Foo(object):\n    def __init__(self",
    "import os\n\nfor i in range",
    "# This",
]


@pytest.fixture(scope="module", params=SERVERS)
def speculative(request: pytest.FixtureRequest, server_pool: ServerPool) -> Server:
    """One server for each algorithm and shape of drafts."""
    return server_pool.get(*SERVERS[request.param], env=NGRAM_ENV if request.param == "ngram" else None)


def generate(server: Server, prompts: list[list[int]], tokens: int, **fields: Any) -> list[dict[str, Any]]:
    """POST /generate, greedily, all at once."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompts, "sampling_params": sampling, **fields}
    answers: list[dict[str, Any]] = (
        httpx.post(f"{server.url}/generate", json=body, timeout=120).raise_for_status().json()
    )
    return answers


def prompts_of(hf: HuggingFace, seed: int) -> list[list[int]]:
    """Prompts of code, whose continuations drafts foresee, and of noise, where they fail."""
    chooser = random.Random(seed)
    code: list[list[int]] = hf.tokenizer(PROMPTS)["input_ids"]
    return code + [[chooser.randrange(8, 1000) for _ in range(length)] for length in (1, 7, 33, 70)]


def test_same_tokens_as_greedy_decoding(speculative: Server, hf: HuggingFace) -> None:
    """Each token is the reference's favourite, and some drafts were accepted: else nothing was tested."""
    prompts = prompts_of(hf, seed=1)
    answers = generate(speculative, prompts, tokens=48)
    for prompt, answer in zip(prompts, answers, strict=True):
        output = answer["output_ids"]
        assert output == hf.favourites([*prompt, *output[:-1]])[len(prompt) - 1 :]
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 48
