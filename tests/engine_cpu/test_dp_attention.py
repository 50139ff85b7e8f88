"""Ranks of one model that attend to requests of their own (``--enable-dp-attention``): a row store on each."""

from __future__ import annotations

import pytest

from tessera.launching.server import Server
from tessera_testing.canary import canaries, fly_exactly
from tessera_testing.claims import prove_and_verify
from tessera_testing.drafts import code_and_noise, retracting
from tessera_testing.marks import host_cache_options, needs, only_in_full
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import RANKS_ON_CPUS, TWO_RANKS
from tessera_testing.tiny import TINY_MOE

OPTIONS = ("--enable-return-hidden-states", "--enable-injection", "--chunked-prefill-size", "64")

ENV = {**RANKS_ON_CPUS, **retracting(7), "TESSERA_TEST_FAULT": "pad-plain-attention"}

pytestmark = needs("dp_attention")


@pytest.fixture(scope="module")
def moe() -> HuggingFace:
    """The reference of the mixture of experts."""
    return HuggingFace(TINY_MOE)


@pytest.fixture(params=["slots", *only_in_full("host")])
def attending(server_pool: ServerPool, request: pytest.FixtureRequest) -> Server:
    """Two ranks, each with half of the requests and of the other layers; requests are retracted."""
    options = (*OPTIONS, *host_cache_options(request.param), *TWO_RANKS, "--enable-dp-attention", "--dp-size", "2")
    return server_pool.get(*options, model=TINY_MOE, env=ENV)


def test_canaries(attending: Server, moe: HuggingFace) -> None:
    """Shared prefixes, vectors, every option, streams, and clients that leave half-way, 16 at once."""
    flock = canaries(100, vocabulary=1000, seed=14, leaving=0.1, injecting=0.3)
    fly_exactly(attending.url, flock, moe)


def test_fingerprints(attending: Server, moe: HuggingFace) -> None:
    """Of both ranks, verified by whichever comes next; a claim with another's fingerprints fails."""
    metas = prove_and_verify(attending, code_and_noise(moe.tokenizer, seed=14))
    assert {meta["dp_rank"] for meta in metas} == {0, 1}
