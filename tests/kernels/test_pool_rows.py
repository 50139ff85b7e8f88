"""The pooling kernel against float64."""

from __future__ import annotations

import pytest
import torch

from tessera_kernels.pool_rows import Reduce, Span, pool_rows_torch
from tessera_kernels.pool_rows_triton import pool_rows_triton


@pytest.mark.parametrize(("hidden", "dtype"), [(64, torch.bfloat16), (100, torch.float16), (130, torch.float32)])
def test_pooling(device: str, hidden: int, dtype: torch.dtype) -> None:
    """Spans of every length around the tile's edges, scattered slots, both reductions."""
    rng = torch.Generator().manual_seed(hidden)
    rows = torch.randn(150, hidden, generator=rng).to(dtype)
    slots = torch.stack([torch.randperm(150, generator=rng)[:120] for _ in range(2)]).int()
    spans = [Span(i % 2, i, i + n, reduce) for i, n in enumerate((1, 32, 33, 70)) for reduce in Reduce]
    expected = [
        (line.amax(0) if reduce is Reduce.MAX else line.mean(0)).float()
        for request, start, end, reduce in spans
        for line in [rows.double()[slots[request, start:end].long()]]
    ]
    for pool in (pool_rows_triton, pool_rows_torch):
        found = pool(rows.to(device), slots.to(device), spans)
        torch.testing.assert_close(found.cpu(), torch.stack(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduce", list(Reduce))
def test_nan_spreads_to_its_own_span_only(device: str, reduce: Reduce) -> None:
    """A slot without a row makes its span not finite, and no other."""
    rows = torch.ones(90, 128, device=device, dtype=torch.bfloat16)
    rows[45] = float("nan")
    slots = torch.arange(90, device=device, dtype=torch.int32)[None]
    found = pool_rows_triton(rows, slots, [Span(0, 0, 45, reduce), Span(0, 40, 60, reduce), Span(0, 46, 90, reduce)])
    assert torch.isnan(found[1]).all()
    torch.testing.assert_close(found[[0, 2]], torch.ones(2, 128, device=device))
