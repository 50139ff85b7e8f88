"""Ranks of one model that attend to requests of their own (``--enable-dp-attention``): a row store on each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tessera.launching.server import Server
from tessera_testing.canary import canaries, fly, judge
from tessera_testing.claims import claim_of, proven, verdicts
from tessera_testing.drafts import code_and_noise, retracting
from tessera_testing.endpoints import flush_cache
from tessera_testing.marks import needs
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import RANKS_ON_CPUS, TWO_RANKS
from tessera_testing.tiny import TINY_MOE

FLOAT32_ERROR = 1e-5
OPTIONS = ("--enable-return-hidden-states", "--enable-injection", "--chunked-prefill-size", "64")

ENV = {**RANKS_ON_CPUS, **retracting(7), "TESSERA_TEST_FAULT": "pad-plain-attention"}

pytestmark = needs("dp_attention")


@pytest.fixture(scope="module")
def moe() -> HuggingFace:
    """The reference of the mixture of experts."""
    return HuggingFace(TINY_MOE)


@pytest.fixture
def attending(server_pool: ServerPool) -> Server:
    """Two ranks, each with half of the requests and of the other layers; requests are retracted."""
    options = (*OPTIONS, *TWO_RANKS, "--enable-dp-attention", "--dp-size", "2")
    return server_pool.get(*options, model=TINY_MOE, env=ENV)


def test_canaries(attending: Server, moe: HuggingFace) -> None:
    """Shared prefixes, vectors, every option, streams, and clients that leave half-way, 16 at once."""
    flock = canaries(100, vocabulary=1000, seed=14, leaving=0.1, injecting=0.3)
    judged = judge(flock, fly(attending.url, flock, at_once=16), moe)
    assert [verdict.problem for verdict in judged if verdict.problem] == []
    assert max(verdict.error for verdict in judged) <= FLOAT32_ERROR


def test_fingerprints(attending: Server, moe: HuggingFace) -> None:
    """Of both ranks, verified by whichever comes next; a claim with another's fingerprints fails."""
    with ThreadPoolExecutor(4) as threads:
        metas = list(threads.map(lambda prompt: proven(attending, prompt), code_and_noise(moe.tokenizer, seed=14)))
    assert {meta["dp_rank"] for meta in metas} == {0, 1}
    flush_cache(attending)
    claims = [claim_of(meta) for meta in metas]
    wrong = {**claims[-1], "fingerprints": claims[-2]["fingerprints"]}
    assert verdicts(attending, *claims, wrong) == ["pass"] * len(claims) + ["fail"]
