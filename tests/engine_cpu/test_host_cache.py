"""Prefixes that were evicted come back from the host's memory (``--enable-hierarchical-cache``), with their rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tessera.launching.server import Server
from tessera_testing.architectures import make
from tessera_testing.canary import FLOAT32_ERROR, canaries, fly_exactly
from tessera_testing.claims import post, prove_and_verify
from tessera_testing.drafts import TREE, chain, drafting, retracting
from tessera_testing.endpoints import metrics
from tessera_testing.generate import fresh_prompt, generate
from tessera_testing.marks import needs, only_in_full
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.starts import HOST_CACHE
from tessera_testing.tiny import TINY
from tessera_testing.weights import with_other_weights

SLOTS, TOKENS = 700, 5601
"""On the device, and in the host's memory."""
WIDTH = 256
LENGTH = 150
OPTIONS = (
    *("--enable-return-hidden-states", "--enable-injection", "--enable-metrics", "--chunked-prefill-size", "64"),
    *HOST_CACHE,
)
prompt_of = partial(fresh_prompt, "host cache", LENGTH)

pytestmark = needs("host_cache")


@pytest.fixture(params=["write_through", *only_in_full("write_back")])
def forgetting(server_pool: ServerPool, request: pytest.FixtureRequest) -> Server:
    """Four prompts fill its KV slots; the host's memory holds many more. Requests are retracted."""
    return server_pool.get(*OPTIONS, "--hicache-write-policy", request.param, env=retracting(7))


def ask(server: Server, prompt: list[int], hf: HuggingFace, tokens: int = 3) -> Any:
    """``meta_info`` of an answer with the mean of all rows, which is right."""
    answer = generate(server, prompt, tokens, return_embedding={"over": "all"})
    meta = answer["meta_info"]
    assert meta["embedding"] is not None, meta
    assert relative_error(meta["embedding"], hf.pooled(prompt, answer["output_ids"], "mean", "all")) <= FLOAT32_ERROR
    return meta


def test_what_was_evicted_comes_back(forgetting: Server, hf: HuggingFace) -> None:
    """All but the newest prompts come from the host's memory, and are read whole, also by requests that only read."""
    prompts = [prompt_of(seed) for seed in range(8)]
    for prompt in prompts:
        ask(forgetting, prompt, hf)
    on_host = [ask(forgetting, prompt, hf)["cached_tokens_details"]["host"] for prompt in prompts]
    assert sum(tokens >= LENGTH - 1 for tokens in on_host) >= len(prompts) - SLOTS // LENGTH
    for _ in range(2):  # of those that the first round loads, the second one finds some whole
        for prompt in prompts[:6]:
            ask(forgetting, prompt, hf, 0)
    found = {sample.name: sample.value for sample in metrics(forgetting)}
    assert found["sglang:load_back_tokens_total"] >= sum(on_host)
    assert found["tessera:row_store_host_bytes"] == TOKENS * WIDTH * 4


def test_canaries(forgetting: Server, hf: HuggingFace) -> None:
    """Shared prefixes, vectors, every option, streams, and clients that leave half-way, 16 at once."""
    flock = canaries(100, vocabulary=1000, seed=21, leaving=0.1, injecting=0.3)
    fly_exactly(forgetting.url, flock, hf)


def test_fingerprints(forgetting: Server) -> None:
    """Of answers whose prompts come back."""
    prompts = [prompt_of(seed) for seed in range(10, 18)]
    for prompt in prompts:
        generate(forgetting, prompt, 1)
    metas = prove_and_verify(forgetting, prompts)
    assert sum(meta["cached_tokens_details"]["host"] for meta in metas) > len(prompts) * LENGTH / 3


def test_weights_change(forgetting: Server, hf: HuggingFace, tmp_path: Path) -> None:
    """What is in the host's memory was computed with older weights: who reads rows does not match it."""
    prompts = [prompt_of(seed) for seed in range(20, 26)]
    for prompt in prompts:
        ask(forgetting, prompt, hf)
    for path in (with_other_weights(tmp_path), TINY):
        body = {"model_path": str(path), "flush_cache": False}
        assert post(forgetting, "/update_weights_from_disk", body).raise_for_status().json()["success"]
        reference = HuggingFace(path)
        for _ in range(2):
            for prompt in prompts:
                ask(forgetting, prompt, reference)
    post(forgetting, "/flush_cache", {}).raise_for_status()


DRAFTS = {
    "EAGLE": drafting("EAGLE", chain(3)),
    "TileSpec": (*drafting("EAGLE3", chain(3)), "--tile-spec"),
    "TileSpec's trees": (*drafting("EAGLE", TREE), "--tile-spec"),
}


@pytest.mark.full
@pytest.mark.parametrize("drafts", DRAFTS)
def test_drafts(server_pool: ServerPool, hf: HuggingFace, drafts: str) -> None:
    """Accepted drafts' rows go to the host's memory and come back with those of prompts."""
    server = server_pool.get(*OPTIONS, *DRAFTS[drafts], env=retracting(7) | {"TESSERA_TEST_FAULT": "dice"})
    flock = canaries(60, vocabulary=1000, seed=23, leaving=0.1, injecting=0.3)
    for _ in range(2):
        fly_exactly(server.url, flock, hf)
    prove_and_verify(server, [prompt_of(seed) for seed in range(30, 38)])
    found = {sample.name: sample.value for sample in metrics(server)}
    assert found["sglang:load_back_tokens_total"] > 0
    assert found["sglang:spec_accept_length"] > 1


@pytest.mark.full
@pytest.mark.parametrize("name", ["DeepSeek-V3", "Mellum"])
def test_models(server_pool: ServerPool, tmp_path: Path, name: str) -> None:
    """Latents, and windows with a KV pool of their own, whose host pool lies beside that of the rows."""
    served, reference = make(tmp_path, name)
    server = server_pool.get(*OPTIONS, "--swa-full-tokens-ratio", "0.5", model=served, env=retracting(7))
    flock = canaries(60, vocabulary=1000, seed=22, injecting=0.3)
    for _ in range(2):
        fly_exactly(server.url, flock, HuggingFace(reference))
    found = {sample.name: sample.value for sample in metrics(server)}
    assert found["sglang:load_back_tokens_total"] > 0
