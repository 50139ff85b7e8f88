"""Embeddings from the real server on a GPU: CUDA graphs and overlap on, two attention backends, canaries at once."""

from __future__ import annotations

import pytest
import torch

from tessera_testing.canary import canaries, fly, judge
from tessera_testing.drafts import retracting
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COMMON = (
    "--enable-return-hidden-states",
    "--enable-injection",
    *SMALL,
)
STRAIN = ("--chunked-prefill-size", "64", "--enable-mixed-chunk", "--max-total-tokens", "20000")
RETRACT = retracting(7)


@pytest.mark.parametrize("strained", [False, True])
@pytest.mark.parametrize(
    ("backend", "prefill"),
    [("fa3", "breakable"), ("triton", "breakable"), ("fa3", "tc_piecewise"), ("fa3", "full")],
)
def test_canaries(server_pool: ServerPool, hf: HuggingFace, backend: str, prefill: str, *, strained: bool) -> None:
    """800 requests, 48 at once, a third injecting; strained: chunks, mixed batches and retraction."""
    graphs = ("--cuda-graph-backend-prefill", prefill)
    args = (*COMMON, *graphs, "--attention-backend", backend, "--dtype", "bfloat16", *(STRAIN if strained else ()))
    server = server_pool.get(*args, env=RETRACT if strained else None)
    flock = canaries(800, vocabulary=1000, seed=11, leaving=0.05, injecting=0.3)
    answers = fly(server.url, flock, at_once=48)
    verdicts = judge(flock, answers, hf)
    answered = [canary for canary, answer in zip(flock, answers, strict=True) if answer is not None]
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert sum(verdict.cached > 0 for verdict in verdicts) > len(verdicts) / 3
    means = [v for c, v in zip(answered, verdicts, strict=True) if c.options and c.options["pooling"] == "mean"]
    print(  # noqa: T201 - the figures are what a run by hand is for
        f"\nMEASURED {backend} {prefill} strained={strained}: {len(verdicts)} answers, "
        f"least cosine {min(verdict.cosine for verdict in verdicts):.6f}, "
        f"of means {min(verdict.cosine for verdict in means):.6f}"
    )
    assert min(verdict.cosine for verdict in means) >= 0.9999
    assert min(verdict.cosine for verdict in verdicts) >= 0.999  # one row is noisier than a mean of many
