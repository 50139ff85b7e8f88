"""Replicas behind one address (``--dp-size``): each has its own KV cache and row store, and nobody notices."""

from __future__ import annotations

import pytest

from tessera.launching.server import Server
from tessera_testing.canary import canaries, fly_exactly
from tessera_testing.claims import prove_and_verify
from tessera_testing.drafts import chain, code_and_noise, drafting, retracting
from tessera_testing.endpoints import metrics
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import STAGES_ON_CPUS

pytestmark = pytest.mark.full

OPTIONS = ("--enable-return-hidden-states", "--enable-injection", *drafting("STANDALONE", chain(5)), "--tile-spec")


@pytest.fixture
def replicas(server_pool: ServerPool) -> Server:
    """Two of them, with everything on; dice size the drafts, and requests are retracted."""
    env = {"TESSERA_TEST_FAULT": "dice", **retracting(7), **STAGES_ON_CPUS}
    return server_pool.get(*OPTIONS, "--enable-metrics", "--dp-size", "2", env=env)


def test_canaries(replicas: Server, hf: HuggingFace) -> None:
    """150 requests, 16 at once: shared prefixes, vectors, every option, streams, and clients that leave half-way."""
    flock = canaries(150, vocabulary=1000, seed=12, leaving=0.1, injecting=0.3)
    fly_exactly(replicas.url, flock, hf)


def test_fingerprints(replicas: Server, hf: HuggingFace) -> None:
    """Of both replicas, verified by whichever comes next; a claim with another's fingerprints fails."""
    metas = prove_and_verify(replicas, code_and_noise(hf.tokenizer, seed=12))
    assert {meta["dp_rank"] for meta in metas} == {0, 1}


def test_each_row_store_is_a_series_of_the_metrics(replicas: Server) -> None:
    """Their sizes stand beside each other and are not written over."""
    stores = [sample for sample in metrics(replicas) if sample.name == "tessera:row_store_bytes"]
    assert sorted(sample.labels["dp_rank"] for sample in stores) == ["0", "1"]
    assert all(sample.value > 0 for sample in stores)
