"""The noise of seeded sampling: ours against SGLang's own kernel, by Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import numpy as np
import torch
from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32_kernel
from tessera.capabilities.fingerprints.sampling import gumbel

seeds, positions = [42, 2**40 + 7, 0], [0, 77, 4095]
hashed = torch.empty(3, 300, dtype=torch.uint32)
given = torch.tensor(seeds).to(torch.uint64), torch.tensor(positions), torch.arange(300)
murmur_hash32_kernel[(3, 1)](*given, hashed, 3, 300, BLOCK_SIZE=512)
share = hashed.to(torch.float64) / torch.iinfo(torch.uint32).max
for seed, position, expected in zip(seeds, positions, -torch.log(-torch.log(share)), strict=True):
    np.testing.assert_allclose(gumbel(seed, position, np.arange(300)), expected.numpy(), rtol=1e-12)
"""


def test_the_noise_is_sglangs() -> None:
    """Of three seeds at three positions, for 300 tokens each."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
