"""The copying kernel against indexing."""

from __future__ import annotations

import pytest
import torch

from tessera_kernels.ops.rows.copy_rows import copy_rows
from tessera_kernels.triton.rows.copy_rows import copy_rows_triton


@pytest.mark.parametrize(("hidden", "dtype"), [(100, torch.float32), (1024, torch.bfloat16), (2500, torch.float16)])
@pytest.mark.parametrize("to_host", [False, True])
def test_copying(device: str, hidden: int, dtype: torch.dtype, *, to_host: bool) -> None:
    """Scattered rows, one of them NaN; all others of the target stay. From the host's memory and to it."""
    rng = torch.Generator().manual_seed(hidden)
    source = torch.randn(60, hidden, generator=rng).to(dtype)
    source[7] = float("nan")
    target = torch.randn(80, hidden, generator=rng).to(dtype)
    to, of = torch.randperm(80, generator=rng)[:20], torch.randperm(60, generator=rng)[:20]
    of[0] = 7
    expected = target.clone()
    expected[to] = source[of]
    places = to.to(device), of.to(device)
    for copy in (copy_rows_triton, copy_rows.reference):
        if device == "cuda" and copy is copy_rows_triton:
            pinned, other = (target.clone(), source) if to_host else (source, target.clone())
            pinned, other = pinned.pin_memory(), other.cuda()
            own, read = (pinned, other) if to_host else (other, pinned)
            copy(places, own, read)
            torch.cuda.synchronize()
        else:
            own = target.clone().to(device)
            copy(places, own, source.to(device))
        torch.testing.assert_close(own.cpu(), expected, equal_nan=True, rtol=0, atol=0)


def test_nothing(device: str) -> None:
    """No rows are no launch."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    rows = torch.ones(2, 64, device=device)
    copy_rows_triton((none, none), rows, rows * 2)
    assert bool((rows == 1).all())
