"""Each policy on the CPU engine, by a cost table that makes one choice pay for each batch size and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tessera.launching.server import Server
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.trace import Trace
from tessera_testing.drafts import chain, drafting, write_reduced_head
from tessera_testing.generate import generate
from tessera_testing.marks import only_in_full
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace

STANDALONE, EAGLE3 = drafting("STANDALONE", chain(5)), drafting("EAGLE3", chain(5))
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


def forced(
    pool: ServerPool, folder: Path, options: tuple[str, ...], costs: CostTable, faults: str = ""
) -> tuple[Server, Path]:
    """A server that decides by these costs, and the trace of what it decides."""
    file, trace = folder / "costs.json", folder / "trace.jsonl"
    file.write_text(json.dumps(costs.to_json()))
    env = {"TESSERA_TEST_FAULT": f"costs {faults}", "TESSERA_TEST_COSTS": str(file)}
    return pool.get(*options, "--tile-spec", "--tile-spec-trace", str(trace), env=env), trace


@pytest.mark.parametrize("policy", ["ragged", *only_in_full("uniform")])
def test_a_forced_policy_does_not_change_the_tokens(
    server_pool: ServerPool, hf: HuggingFace, tmp_path: Path, policy: str
) -> None:
    """Every width and plain decoding, without graphs for parts; and parts only. Each token is the reference's."""
    server, trace = forced(server_pool, tmp_path, STANDALONE, POLICIES[policy])
    for bs in BATCHES:
        prompts = [hf.tokenizer(f"def f{bs}{place}(x):\n    return")["input_ids"] for place in range(bs)]
        answers = generate(server, prompts, tokens=40)
        for ids, answer in zip(prompts, answers, strict=True):
            output = answer["output_ids"]
            assert output == hf.favourites([*ids, *output[:-1]])[len(ids) - 1 :]
    made = {(one.bs, one.choice.steps, one.choice.tier) for one in Trace(trace).records() if not one.choice.exploring}
    if policy == "uniform":
        assert made == {(bs, steps, None) for bs, steps in UNIFORM.items()}
    else:
        assert {(bs, tier) for bs, _, tier in made} == set(TIERS.items())
        assert {steps for _, steps, _ in made} - {0}


@pytest.fixture(scope="module")
def reduced_head(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of a server with a head that has numbers of its own for most of the target's tokens."""
    return drafting("EAGLE3", chain(5), write_reduced_head(tmp_path_factory.mktemp("reduced")))


@pytest.mark.parametrize(
    ("picks", "vocabulary"),
    [
        pytest.param("", "full", id="CPU", marks=pytest.mark.full),
        pytest.param("pick-as-on-gpu", "full", id="GPU", marks=pytest.mark.full),
        pytest.param("pick-as-on-gpu", "reduced", id="GPU-reduced-vocabulary", marks=pytest.mark.full),
    ],
)
def test_a_forced_width_drafts_what_sglang_would(
    server_pool: ServerPool, hf: HuggingFace, tmp_path: Path, reduced_head: tuple[str, ...], picks: str, vocabulary: str
) -> None:
    """As many drafts are right, in as many steps, as with SGLang's fixed setting: drafts go on from the right row.

    Wrong drafts would not change the tokens, and nothing else would tell. What is for one row is computed of no other.
    """
    head = EAGLE3 if vocabulary == "full" else reduced_head
    likeliest = (*head, "--tile-spec-no-rejection-sampling")
    server, _ = forced(server_pool, tmp_path, likeliest, table(dict.fromkeys(BATCHES, 5), None), f"last-mlps {picks}")
    prompts = [hf.tokenizer(text)["input_ids"] for text in ("def main():\n    import", "import os\n\nfor i in range")]
    found = []
    for one in (server, server_pool.get(*head)):
        metas = [answer["meta_info"] for answer in generate(one, prompts, tokens=150)]
        found.append([(meta["spec_num_correct_drafts"], meta["spec_verify_ct"]) for meta in metas])
    assert found[0] == found[1]
    assert min(correct for correct, _ in found[0]) > 10
    extended = re.findall(r"last MLP of (\d+) rows, picked", server.log)
    assert set(extended) <= {"1", "2"}
    assert len(extended) > 20
