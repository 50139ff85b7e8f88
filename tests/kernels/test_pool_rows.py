"""The pooling kernel against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera_kernels.ops.rows.pool_rows import Reduce, Span, pool_rows
from tessera_kernels.triton.rows.pool_rows import pool_rows_triton

LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 200)
"""Around the edges of a tile of 64 rows."""
MAXIMA = (1, 65, 128)
"""Few, and none over wide rows: the interpreter needs a fifth of a second for each 64 columns of one."""
SHAPES = [(100, torch.float32), (64, torch.bfloat16), (70, torch.float16), (1, torch.float32), (2048, torch.bfloat16)]
WIDE = [pytest.param(hidden, torch.bfloat16, marks=pytest.mark.full) for hidden in (4096, 8192)]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a kernel is to write holds ones in every bit, NaN, so that what it leaves out shows."""
    empty = torch.empty

    def nans(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty(*args, **kwargs)
        made.view(torch.uint8).fill_(0xFF)
        return made

    monkeypatch.setattr(torch, "empty", nans)


def arrived(found: torch.Tensor) -> torch.Tensor:
    """The vectors, once the kernel has run: it writes them to the host's memory itself."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found


@pytest.mark.parametrize(("hidden", "dtype"), [*SHAPES, *WIDE])
def test_pooling(device: str, hidden: int, dtype: torch.dtype) -> None:
    """Spans of every length, from scattered slots; the slots that no span has are NaN, and are not read."""
    rng = torch.Generator().manual_seed(hidden)
    rows = torch.full((600, hidden), float("nan"), dtype=dtype)
    slots = torch.stack([torch.randperm(600, generator=rng)[:260] for _ in range(2)]).int()
    spans = [Span(i % 2, 3 * i, 3 * i + n, Reduce.MEAN) for i, n in enumerate(LENGTHS)]
    spans += [Span(i % 2, 7 * i, 7 * i + n, Reduce.MAX) for i, n in enumerate(MAXIMA if hidden <= 100 else ())]
    for request, start, end, _ in spans:
        used = slots[request, start:end].long()
        rows[used] = (torch.randn(len(used), hidden, generator=rng) - 3).to(dtype)
    expected = [
        (line.amax(0) if reduce is Reduce.MAX else line.mean(0)).float()
        for request, start, end, reduce in spans
        for line in [rows.double()[slots[request, start:end].long()]]
    ]
    for pool in (pool_rows_triton, pool_rows.reference):
        found = arrived(pool(rows.to(device), slots.to(device), spans))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduce", list(Reduce))
def test_nan_spreads_to_its_own_span_only(device: str, reduce: Reduce) -> None:
    """A slot without a row makes its span not finite, and no other."""
    rows = torch.ones(300, 64, device=device, dtype=torch.bfloat16)
    rows[150] = float("nan")
    slots = torch.arange(300, device=device, dtype=torch.int32)[None]
    spans = [Span(0, 0, 150, reduce), Span(0, 100, 200, reduce), Span(0, 151, 300, reduce)]
    found = arrived(pool_rows_triton(rows, slots, spans))
    assert torch.isnan(found[1]).all()
    torch.testing.assert_close(found[[0, 2]], torch.ones(2, 64), rtol=1e-6, atol=0)
