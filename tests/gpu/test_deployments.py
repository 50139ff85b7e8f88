"""Models on two GPUs whose last rank, or each rank, has the rows: ``--pp-size 2`` and ``--enable-dp-attention``.

Where there is one GPU, both ranks share it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tessera_testing.architectures import make
from tessera_testing.canary import canaries, fly, judge
from tessera_testing.claims import prove_and_verify
from tessera_testing.drafts import code_and_noise, retracting
from tessera_testing.marks import needs
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import SMALL, TWO_RANKS, Ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COMMON = (
    *("--enable-return-hidden-states", "--toploc-verification", *SMALL, "--dtype", "bfloat16"),
    *("--attention-backend", "triton", "--chunked-prefill-size", "128"),
    *("--cuda-graph-bs-decode", "1", "2", "4", "8", "16", "32"),
)


class Deployment(NamedTuple):
    """Options of the server, and the share of requests that inject."""

    options: tuple[str, ...]
    injecting: float = 0


DEPLOYMENTS = {
    "stages": Deployment(("--pp-size", "2")),
    "dp-attention": Deployment(
        ("--tp-size", "2", "--enable-dp-attention", "--dp-size", "2", "--enable-injection"), 0.3
    ),
}


@pytest.mark.parametrize(
    "name", ["stages", pytest.param("dp-attention", marks=needs("dp_attention"))], ids=list(DEPLOYMENTS)
)
def test_canaries_and_fingerprints(server_pool: ServerPool, two_ranks: Ranks, tmp_path: Path, name: str) -> None:
    """400 requests of a dense Qwen3 with random weights, 32 at once, retracted; fingerprints of 8 responses."""
    torch.set_num_threads(4)  # as the fixture of the reference
    deployment = DEPLOYMENTS[name]
    served, reference = make(tmp_path, "Qwen3")
    env = retracting(7) | two_ranks.env | {"TESSERA_TEST_FAULT": " ".join(two_ranks.faults)}
    alone = two_ranks.options[len(TWO_RANKS) :]
    server = server_pool.get(*COMMON, *deployment.options, *alone, model=served, env=env)
    hf = HuggingFace(reference)
    flock = canaries(400, vocabulary=1000, seed=18, leaving=0.05, injecting=deployment.injecting)
    verdicts = judge(flock, fly(server.url, flock, at_once=32), hf)
    least = min(verdict.cosine for verdict in verdicts)
    print(f"\nMEASURED {name}: {len(verdicts)} answers, least cosine {least:.6f}")  # noqa: T201 - run by hand
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert sum(verdict.cached > 0 for verdict in verdicts) > len(verdicts) / 3
    assert least >= 0.999
    metas = prove_and_verify(server, code_and_noise(hf.tokenizer, seed=18))
    assert name == "stages" or {meta["dp_rank"] for meta in metas} == {0, 1}
