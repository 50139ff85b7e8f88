"""The Triton kernel of fingerprints, by Triton's interpreter: no GPU, and a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
import torch
from tessera.fingerprint.chunks import ALL_ROWS, values_proven
from tessera_kernels.ops.rows.top_rows import Chunk, Workspace, top_rows_torch
from tessera_kernels.triton.rows.top_rows import top_rows_triton

hidden_size, topk, dtype = int(sys.argv[1]), int(sys.argv[2]), getattr(torch, sys.argv[3])
generator = torch.Generator().manual_seed(7)
rows = torch.randn(200, hidden_size, generator=generator).to(dtype)
rows[3, 5], rows[4, 6] = float("nan"), float("inf")
slots = torch.randperm(200, generator=generator).to(torch.int32).reshape(2, 100)
spans = [(0, 0, 1, ALL_ROWS), (1, 5, 90, ALL_ROWS), (0, 10, 42, 0xF0F0A001), (1, 0, 3, 2)]
chunks = [Chunk(r, s, e, m, values_proven(m, e - s, hidden_size, topk)) for r, s, e, m in spans]
workspace = Workspace()
top_rows_triton(rows, slots, chunks[1:2], topk, workspace)  # the next ones need more of it
*_, kernel = [top_rows_triton(rows, slots, chunks, topk, workspace) for _ in range(2)]
twin = top_rows_torch(rows, slots, chunks, topk)
for chunk, *found in zip(chunks, kernel, twin, strict=True):
    by_kernel, by_twin = (row.clone() for row in found)  # at a multiple of four bytes, as a view of them must begin
    places = by_kernel[: 4 * chunk.values].view(torch.int32).numpy()
    bits = by_kernel[4 * topk :][: 2 * chunk.values].view(torch.int16).numpy()
    flat = rows[slots[chunk.request, chunk.start : chunk.end].long()].bfloat16().flatten().view(torch.int16).numpy()
    magnitudes = (flat & 0x7FFF).astype(int)
    counts = np.array([chunk.mask >> (row % 32) & 1 for row in range(chunk.end - chunk.start)]).repeat(hidden_size)
    magnitudes[counts == 0] = -1
    expected = np.lexsort((np.arange(len(flat)), -magnitudes))[: chunk.values]
    assert sorted(places) == sorted(expected), (chunk, "the largest, and of equal ones the first")
    nan = (flat[places] & 0x7FFF) > 0x7F80
    assert ((flat[places] == bits) | nan).all()
    assert (((bits & 0x7FFF) > 0x7F80) == nan).all()
    assert not by_kernel[4 * topk + 2 * chunk.values :].any()
    same = by_twin[4 * topk :][: 2 * chunk.values].view(torch.int16).numpy()
    assert sorted((same & 0x7FFF).clip(max=0x7F81)) == sorted((bits & 0x7FFF).clip(max=0x7F81))
"""


@pytest.mark.parametrize(
    ("hidden_size", "topk", "dtype"), [(64, 128, "bfloat16"), (5000, 32, "float16"), (96, 101, "float32")]
)
def test_the_kernel_finds_the_largest(hidden_size: int, topk: int, dtype: str) -> None:
    """Short, long, masked chunks; fewer values than asked for; a width that is no power of two; NaN and infinity."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(hidden_size), str(topk), dtype],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
