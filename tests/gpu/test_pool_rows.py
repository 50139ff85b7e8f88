"""The Triton kernel against its torch reference and against float64, on a GPU."""

from __future__ import annotations

import pytest
import torch

from tessera_kernels.ops.rows.pool_rows import Reduce, Span, pool_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("hidden", [64, 100, 256, 2048, 4096, 8192])
def test_equals_the_reference(hidden: int, dtype: torch.dtype) -> None:
    """Spans of every length around the tile's edges, scattered slots, both reductions."""
    generator = torch.Generator("cuda").manual_seed(hidden)
    rows = torch.randn(5000, hidden, device="cuda", generator=generator).to(dtype)
    slots = torch.stack([torch.randperm(5000, device="cuda", generator=generator)[:2100] for _ in range(4)]).int()
    lengths = (1, 2, 63, 64, 65, 128, 129, 2000)
    spans = [Span(i % 4, i, i + n, reduce) for i, n in enumerate(lengths) for reduce in Reduce]
    found, expected = pool_rows(rows, slots, spans), pool_rows.reference(rows.double(), slots, spans)
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduce", list(Reduce))
def test_nan_spreads_to_its_own_span_only(reduce: Reduce) -> None:
    """A slot without a row makes its span not finite, and no other; the output is written everywhere."""
    rows = torch.ones(300, 128, device="cuda", dtype=torch.bfloat16)
    rows[150] = float("nan")
    slots = torch.arange(300, device="cuda", dtype=torch.int32)[None]
    found = pool_rows(rows, slots, [Span(0, 0, 150, reduce), Span(0, 100, 200, reduce), Span(0, 151, 300, reduce)])
    torch.cuda.synchronize()
    assert torch.isnan(found[1]).all()
    torch.testing.assert_close(found[[0, 2]], torch.ones(2, 128))
