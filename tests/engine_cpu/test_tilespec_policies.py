"""Each policy on the CPU engine, by a cost table that makes one choice pay for each batch size and no other."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tessera.testing.pool import ServerPool
from tessera.testing.reference import HuggingFace
from tessera.testing.tiny import TINY_DRAFT
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.trace import Trace

STANDALONE = (
    "--speculative-algorithm",
    "STANDALONE",
    "--speculative-draft-model-path",
    str(TINY_DRAFT),
    "--speculative-num-steps",
    "5",
    "--speculative-eagle-topk",
    "1",
    "--speculative-num-draft-tokens",
    "6",
)
STEPS = (0, 1, 2, 3, 5)
BATCHES = (1, 2, 3, 4, 5)
CHEAP, DEAR = 0.01, 100.0
TIERS = {1: 3, 2: 3, 3: 3, 4: 8, 5: 8}
"""Tokens verified in part of so many requests: none of them has six."""


def table(steps: dict[int, int], tiers: dict[int, int] | None) -> CostTable:
    """What is cheap for each batch size: verifying all of so many drafts, or so many tokens in all."""

    def verify(count: int) -> Curve:
        return Curve(BATCHES, [CHEAP if steps.get(bs) == count else DEAR for bs in BATCHES])

    nothing = Curve([1], [0.0])
    sizes = sorted(set(tiers.values())) if tiers else []
    return CostTable(
        # Each takes ten times as long as the one below, so that the least with room for every request wins.
        tiers=Curve(sizes, [CHEAP * 10**place for place in range(len(sizes))]) if tiers else None,
        uniform={count + 1: verify(count) for count in STEPS},
        draft={count: nothing for count in STEPS if count},
        extend={count + 1: nothing for count in STEPS if count},
        kv_seconds=dict.fromkeys(STEPS, 0.0),
        host_seconds=0.0,
        batch_sizes=list(BATCHES),
    )


UNIFORM = {1: 5, 2: 3, 3: 2, 4: 1, 5: 0}
POLICIES = {"uniform": table(UNIFORM, None), "ragged": table({}, TIERS)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_forced_policy_does_not_change_the_tokens(
    server_pool: ServerPool, hf: HuggingFace, tmp_path: Path, policy: str
) -> None:
    """Every width and plain decoding, without graphs for parts; and parts only. Each token is the reference's."""
    costs, trace = tmp_path / "costs.json", tmp_path / "trace.jsonl"
    costs.write_text(json.dumps(POLICIES[policy].to_json()))
    env = {"TESSERA_TEST_FAULT": "costs", "TESSERA_TEST_COSTS": str(costs)}
    server = server_pool.get(*STANDALONE, "--tile-spec", "--tile-spec-trace", str(trace), env=env)
    for bs in BATCHES:
        prompts = [hf.tokenizer(f"def f{bs}{place}(x):\n    return")["input_ids"] for place in range(bs)]
        sampling = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompts, "sampling_params": sampling}  # in one body: they run together
        answers = httpx.post(f"{server.url}/generate", json=body, timeout=120).raise_for_status().json()
        for ids, answer in zip(prompts, answers, strict=True):
            output = answer["output_ids"]
            assert output == hf.favourites([*ids, *output[:-1]])[len(ids) - 1 :]
    made = {(one.bs, one.choice.steps, one.choice.tier) for one in Trace(trace).records() if not one.choice.exploring}
    if policy == "uniform":
        assert made == {(bs, steps, None) for bs, steps in UNIFORM.items()}
    else:
        assert {(bs, tier) for bs, _, tier in made} == set(TIERS.items())
        assert {steps for _, steps, _ in made} - {0}
