"""Rows that go to the host's memory and come back, on the CPU."""

from __future__ import annotations

import torch

from tessera.rows.host import HostRows
from tessera.rows.store import RowStore

H = 4


def stores() -> tuple[RowStore, HostRows]:
    """A store of 10 slots, of which the last has no row, and room for 20 tokens on the host."""
    store = RowStore(10, H, torch.float32, "cpu")
    store.write(torch.arange(9), torch.randn(9, H, generator=torch.Generator().manual_seed(1)))
    return store, HostRows(20, store)


def test_rows_come_back() -> None:
    """To other slots than they had; a row that was never written is NaN on its way, and no other row changes."""
    store, host = stores()
    before = store.rows.clone()
    host.back_up(torch.tensor([7, 0, 19]), torch.tensor([2, 9, 4], dtype=torch.int32))
    host.load(torch.tensor([19, 0, 7]), torch.tensor([1, 3, 5]))
    assert torch.equal(store.rows[[1, 5]], before[[4, 2]])
    assert store.rows[3].isnan().all()
    others = [0, 2, 4, 6, 7, 8]
    assert torch.equal(store.rows[others], before[others])
    assert host.nbytes == 20 * H * 4


def test_tokens_without_rows() -> None:
    """What was never backed up, or was forgotten, is NaN where it comes back."""
    store, host = stores()
    host.back_up(torch.tensor([3]), torch.tensor([2]))
    host.invalidate()
    host.load(torch.tensor([3, 4]), torch.tensor([0, 1]))
    assert store.rows[:2].isnan().all()


def test_a_copy_that_fails_breaks_the_store() -> None:
    """Slots would keep their previous owner's rows."""
    store, host = stores()
    host.load(torch.tensor([99]), torch.tensor([0]))
    assert store.broken is not None
