"""Packing of verify rows: Triton and the torch reference against a plain loop."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera_kernels.ops.verify.pack_verify import KVSlots, VerifyRows, pack_verify
from tessera_kernels.triton.verify.pack_verify import pack_verify_triton
from tessera_testing.examples import several

POISON = -(2**30)
sizes = st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 3, 5, 7, 16]), st.integers(0, 2**31))


@several
@given(sizes, st.integers(0, 300))
def test_rows_are_packed(device: str, size: tuple[int, int, int], padding: int) -> None:
    """Each row is where a plain loop puts it, with its KV slot; padding is zero."""
    bs, steps, seed = size
    width = steps + 1
    rng = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, width + 1, (bs,), generator=rng)
    total = int(lens.sum())
    qo_indptr = torch.cat([torch.zeros(1), lens.cumsum(0), torch.full((3,), total)]).int().to(device)
    padded = VerifyRows(*(torch.randint(1, 2**40, (3, bs * width), generator=rng).to(device).unbind()))
    table = torch.randint(1, 2**31, (64, 100 + width), generator=rng, dtype=torch.int32)
    pool, starts = torch.randperm(64, generator=rng)[:bs], torch.randint(100, (bs,), generator=rng)
    locations = [
        int(table[r, s + i]) for r, s in zip(pool.tolist(), starts.tolist(), strict=True) for i in range(width)
    ]
    slots = KVSlots(table.to(device), pool.to(device), starts.to(device))
    source = [b * width + within for b, n in enumerate(lens.tolist()) for within in range(n)]
    for pack in (pack_verify_triton, pack_verify.reference):
        packed = VerifyRows(*torch.full((3, total + padding), POISON, device=device).unbind())
        padded.locations.fill_(POISON)
        pack(padded, slots, qo_indptr, packed)
        assert padded.locations.tolist() == locations
        for found, values in zip(packed, padded, strict=True):
            assert found.tolist() == values[source].tolist() + [0] * padding
