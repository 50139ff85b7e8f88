"""A mixture of experts on a GPU, under each runner that takes bfloat16 on an H200.

A router that hardly prefers one expert to another may choose otherwise than the float32 reference: then a row jumps.
So means are held to a bound that this noise should keep and a foreign row does not, and their median to a close one.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from statistics import median

import pytest
import torch

from tessera_testing.canary import canaries, fly, judge
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import SMALL
from tessera_testing.tiny import TINY_MOE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COMMON = ("--enable-return-hidden-states", "--enable-injection", *SMALL)


CUTLASS = files("flashinfer") / "data/cutlass/include" if find_spec("flashinfer") else None
"""What FlashInfer compiles its kernels from when they are first asked for."""
RUNNERS = [
    "triton",
    "triton_kernel",
    pytest.param(
        "flashinfer_cutlass",
        marks=pytest.mark.skipif(not (CUTLASS and CUTLASS.is_dir()), reason=f"FlashInfer lacks {CUTLASS}"),
    ),
]


@pytest.mark.parametrize("runner", RUNNERS)
def test_canaries(server_pool: ServerPool, runner: str) -> None:
    """400 requests, 32 at once, a third injecting."""
    torch.set_num_threads(4)  # more of them fight with the servers' busy loops, and take minutes instead of seconds
    args = (*COMMON, "--dtype", "bfloat16", "--moe-runner-backend", runner)
    server = server_pool.get(*args, model=TINY_MOE)
    flock = canaries(400, vocabulary=1000, seed=12, leaving=0.05, injecting=0.3)
    answers = fly(server.url, flock, at_once=32)
    verdicts = judge(flock, answers, HuggingFace(TINY_MOE))
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    answered = [canary for canary, answer in zip(flock, answers, strict=True) if answer is not None]
    means = [
        verdict.cosine
        for canary, verdict in zip(answered, verdicts, strict=True)
        if canary.options and canary.options["pooling"] == "mean"
    ]
    print(f"\nMEASURED {runner}: cosines of means, least {min(means):.6f}, median {median(means):.6f}")  # noqa: T201
    assert median(means) >= 0.999
    assert min(means) >= 0.95
