"""The values of largest magnitude of chunks: Triton against a stable sort, and against the torch reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tessera.capabilities.fingerprints.selection import value_count
from tessera.rows.reads import ALL_ROWS
from tessera_kernels.ops.rows.top_rows import Chunk, Workspace, top_rows
from tessera_kernels.triton.rows.top_rows import top_rows_triton

SPANS = ((0, 0, 1, ALL_ROWS), (1, 5, 90, ALL_ROWS), (0, 10, 42, 0xF0F0A001), (1, 0, 3, 2))
"""Request, first position, the one after the last, mask."""


def parts(row: torch.Tensor, topk: int, values: int) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Indices, bits and unused bytes of a chunk's output."""
    row = row.clone()  # aligned to four bytes, which views of int32 need
    indices = row[: 4 * values].view(torch.int32).numpy()
    bits = row[4 * topk :][: 2 * values].view(torch.int16).numpy()
    return indices, bits, row[4 * topk + 2 * values :]


@pytest.mark.parametrize(
    ("hidden_size", "topk", "dtype"),
    [
        (64, 128, torch.bfloat16),
        (1500, 32, torch.float16),
        pytest.param(5000, 32, torch.float16, marks=pytest.mark.full),
        (96, 101, torch.float32),
    ],
)
def test_the_largest_are_found(device: str, hidden_size: int, topk: int, dtype: torch.dtype) -> None:
    """Short, long, masked chunks; fewer values than ``topk``; a width that is no power of two; NaN and infinity."""
    rng = torch.Generator().manual_seed(7)
    rows = torch.randn(200, hidden_size, generator=rng).to(dtype)
    rows[3, 5], rows[4, 6] = float("nan"), float("inf")
    slots = torch.randperm(200, generator=rng).to(torch.int32).reshape(2, 100)
    chunks = [Chunk(r, s, e, m, value_count(m, e - s, hidden_size, topk)) for r, s, e, m in SPANS]
    inputs = rows.to(device), slots.to(device)
    workspace = Workspace()
    first = top_rows_triton(*inputs, chunks[1:2], topk, workspace)  # the next launches need a larger workspace
    outputs = [top_rows_triton(*inputs, chunks, topk, workspace) for _ in range(2)]
    if device == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(*outputs)
    assert torch.equal(first[0], outputs[0][1])
    reference = top_rows.reference(rows, slots, chunks, topk)
    for chunk, found, expected in zip(chunks, outputs[-1], reference, strict=True):
        indices, bits, unused = parts(found, topk, chunk.values)
        positions = slots[chunk.request, chunk.start : chunk.end].long()
        flat = rows[positions].bfloat16().flatten().view(torch.int16).numpy()
        magnitudes = (flat & 0x7FFF).astype(int)
        selected = np.array([chunk.mask >> (row % 32) & 1 for row in range(chunk.end - chunk.start)])
        magnitudes[selected.repeat(hidden_size) == 0] = -1
        largest = np.lexsort((np.arange(len(flat)), -magnitudes))[: chunk.values]
        assert sorted(indices) == sorted(largest), chunk  # of equal magnitudes the first
        nan = (flat[indices] & 0x7FFF) > 0x7F80
        assert ((flat[indices] == bits) | nan).all()
        assert (((bits & 0x7FFF) > 0x7F80) == nan).all()
        assert not unused.any()
        _, same, _ = parts(expected, topk, chunk.values)
        assert sorted((same & 0x7FFF).clip(max=0x7F81)) == sorted((bits & 0x7FFF).clip(max=0x7F81))
