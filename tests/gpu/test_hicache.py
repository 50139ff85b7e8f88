"""Prefixes that come back from the host's memory on a GPU (``--enable-hierarchical-cache``): their rows come, too."""

from __future__ import annotations

import pytest
import torch

from tessera_testing.canary import canaries, fly, judge
from tessera_testing.claims import prove_and_verify
from tessera_testing.drafts import chain, code_and_noise, drafting, retracting
from tessera_testing.endpoints import metrics
from tessera_testing.marks import needs
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    needs("host_cache"),
]

COMMON = (
    *("--enable-return-hidden-states", "--enable-injection", "--enable-metrics", "--enable-hierarchical-cache"),
    *SMALL,
    *("--dtype", "bfloat16", "--attention-backend", "fa3", "--chunked-prefill-size", "64"),
    *("--max-total-tokens", "4096", "--hicache-ratio", "8"),
)


@pytest.mark.parametrize(
    ("io_backend", "layout", "policy", "page"),
    [("kernel", "page_first", "write_through", "1"), ("direct", "layer_first", "write_back", "64")],
)
@pytest.mark.parametrize("drafts", [(), drafting("EAGLE", chain(3))], ids=["plain", "drafts"])
def test_canaries(
    server_pool: ServerPool,
    hf: HuggingFace,
    io_backend: str,
    layout: str,
    policy: str,
    page: str,
    drafts: tuple[str, ...],
) -> None:
    """Twice 500 requests, 48 at once, of more prefixes than fit on the GPU; overlap, graphs, chunks, retraction."""
    copies = ("--hicache-io-backend", io_backend, "--hicache-mem-layout", layout, "--hicache-write-policy", policy)
    server = server_pool.get(*COMMON, *copies, "--page-size", page, *drafts, env=retracting(7))
    flock = [
        canary
        for seed in range(31, 41)
        for canary in canaries(50, vocabulary=1000, seed=seed, leaving=0.05, injecting=0.3)
    ]
    for _ in range(2):
        verdicts = judge(flock, fly(server.url, flock, at_once=48), hf)
        assert [verdict.problem for verdict in verdicts if verdict.problem] == []
        assert min(verdict.cosine for verdict in verdicts) >= 0.999
    prove_and_verify(server, code_and_noise(hf.tokenizer, seed=31))
    found = {sample.name: sample.value for sample in metrics(server)}
    loaded = found["sglang:load_back_tokens_total"]
    print(  # noqa: T201 - the figures are what a run by hand is for
        f"\nMEASURED {io_backend} {layout} {policy} page {page} {drafts[1:2]}: {loaded:.0f} tokens came back, "
        f"least cosine {min(verdict.cosine for verdict in verdicts):.6f}"
    )
    assert loaded > 1000
