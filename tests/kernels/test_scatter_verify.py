"""Scattering of packed verify rows: Triton and the torch reference against a plain loop."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.ops.verify.scatter_verify import scatter_verify
from tessera_kernels.triton.verify.scatter_verify import MAX_COLUMNS, scatter_verify_triton
from tessera_testing.examples import several

POISON = -(2**30)
sizes = st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 3, 5, 7, 16]), st.integers(0, 2**31))


@several
@given(sizes, st.integers(0, 300))
def test_rows_are_scattered(device: str, size: tuple[int, int, int], padding: int) -> None:
    """Each row is where a plain loop puts it, numbers or hidden states; the others are the fill."""
    bs, steps, seed = size
    width = steps + 1
    rng = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, width + 1, (bs,), generator=rng)
    total = int(lens.sum())
    qo_indptr = torch.cat([torch.zeros(1), lens.cumsum(0), torch.full((3,), total)]).int().to(device)
    source = [b * width + within for b, n in enumerate(lens.tolist()) for within in range(n)]
    for dtype, columns in ((torch.int64, ()), (torch.bfloat16, (1 + seed % 70,))):
        rows = torch.randint(-1000, 1000, (total + padding, *columns), generator=rng).to(dtype).to(device)
        expected = torch.full((bs * width, *columns), -1, dtype=dtype, device=device)
        expected[source] = rows[:total]
        for scatter in (scatter_verify_triton, scatter_verify.reference):
            found = torch.full_like(expected, POISON)
            scatter(rows, qo_indptr, bs, found, -1)
            assert torch.equal(found, expected)


def test_scatter_of_rows_wider_than_a_program(device: str) -> None:
    """Hidden states: several programs for a row."""
    qo_indptr = torch.tensor([0, 2, 3], dtype=torch.int32, device=device)
    rows = torch.randn(4, MAX_COLUMNS + 500, generator=torch.Generator().manual_seed(1)).to(device)
    found = torch.full((6, rows.shape[1]), float("nan"), device=device)
    scatter_verify_triton(rows, qo_indptr, 2, found, 0)
    zero = torch.zeros_like(rows[0])
    assert torch.equal(found, torch.stack([rows[0], rows[1], zero, rows[2], zero, zero]))


def test_what_is_not_a_number_in_a_padding_row_stays_there(device: str) -> None:
    """Attention leaves padding rows as they were; hidden states that were not verified are the fill."""
    packed = torch.tensor([[1.0], [2.0], [float("nan")]], device=device)
    qo_indptr = torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
    for scatter in (scatter_verify_triton, scatter_verify.reference):
        padded = torch.full((4, 1), float("nan"), device=device)
        scatter(packed, qo_indptr, 2, padded, 0)
        assert padded.flatten().tolist() == [1, 0, 2, 0]
