"""The row store and the pooling over it, on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from tessera.rows.kinds import Placed
from tessera.rows.reader import Fetched, Read, RowReader
from tessera.rows.reads import Pool, Rows, Top
from tessera.rows.store import RowStore, row_bytes
from tessera_testing.reads import grouped, tensors_of

H = 8


def filled(slots: int = 32) -> tuple[RowStore, torch.Tensor]:
    """A store whose slots hold random rows, and these rows."""
    states = torch.randn(slots, H, generator=torch.Generator().manual_seed(1))
    store = RowStore(slots, H, torch.float32, "cpu")
    order = torch.randperm(slots, generator=torch.Generator().manual_seed(2))
    store.write(order, states[order])
    return store, states


def taken(read: Read) -> Fetched:
    """On the CPU a read is done when it began."""
    fetched = read.result()
    assert fetched is not None
    return fetched


def test_a_move_that_fails_breaks_the_store() -> None:
    """A slot with a row that is not its token's must never be read."""
    store, _ = filled()
    store.move(torch.tensor([1, 2]), torch.tensor([2, 1]))
    assert store.broken is None
    store.move(torch.tensor([1]), torch.tensor([99]))
    assert store.broken is not None


def test_what_a_model_makes_smaller_is_made_larger() -> None:
    """A row is the state before that."""
    store = RowStore(4, H, torch.float32, "cpu")
    store.factor = 4.0
    store.write(torch.tensor([2]), torch.ones(1, H))
    assert store.rows[2].tolist() == [4.0] * H


def test_rows_on_the_host() -> None:
    """Without a GPU they are a store as any other, in pages of its own."""
    store = RowStore(5, H, torch.bfloat16, "cpu", on_host=True)
    assert store.rows.shape == (5, H)
    assert store.rows.isnan().all()
    store.write(torch.tensor([3, 1]), torch.ones(2, H, dtype=torch.bfloat16))
    assert store.rows[[1, 3]].tolist() == [[1.0] * H] * 2
    assert store.rows[[0, 2, 4]].isnan().all()


def test_released_memory_is_not_written() -> None:
    """While the memory is gone an update touches nothing; once it is back every row is forgotten."""
    store, states = filled()
    store.release()
    store.invalidate()
    assert torch.equal(store.rows, states)
    store.resume()
    assert store.rows.isnan().all()
    store.write(torch.arange(32), states)
    store.invalidate()
    assert store.rows.isnan().all()


def test_row_bytes() -> None:
    """8 KiB a token for an 8B Llama in bfloat16."""
    assert row_bytes(4096, torch.bfloat16) == 8192


def test_a_row_is_found_through_the_map_of_slots() -> None:
    """Spans of two requests with scattered slots, as brute force has them."""
    store, states = filled()
    slots = torch.tensor([[5, 1, 30, 7, 0], [2, 3, 4, 9, 11]], dtype=torch.int32)
    found = RowReader(store.rows, slots, 128).start(
        grouped(Placed(0, Pool(0, 4)), Placed(1, Pool(1, 5, largest=True)), Placed(0, Pool(2, 3)))
    )
    expected = torch.stack([states[[5, 1, 30, 7]].mean(0), states[[3, 4, 9, 11]].amax(0), states[30]])
    (vectors,) = tensors_of(taken(found), Pool)
    np.testing.assert_allclose(vectors.numpy(), expected.numpy(), rtol=1e-6)


def test_what_was_never_written_is_not_finite() -> None:
    """An empty slot poisons every pooling that touches it."""
    store = RowStore(4, H, torch.bfloat16, "cpu")
    store.write(torch.tensor([0, 1]), torch.ones(2, H, dtype=torch.bfloat16))
    slots = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    reads = grouped(*(Placed(0, Pool(0, 3, largest)) for largest in (False, True)))
    (vectors,) = tensors_of(taken(RowReader(store.rows, slots, 128).start(reads)), Pool)
    assert torch.isnan(vectors).all()


def test_invalidate_forgets_all() -> None:
    """After a weight update nothing is finite until it is written again."""
    store, states = filled()
    store.invalidate()
    assert torch.isnan(store.rows).all()
    store.write(torch.tensor([3]), states[:1])
    assert torch.equal(store.rows[3], states[0])


def test_a_write_that_cannot_be_done_breaks_the_store() -> None:
    """Missing states, a wrong width, a wrong dtype, a slot that is not there: never a silent skip."""
    good = torch.ones(1, H)
    for slots, states in [
        (torch.tensor([0]), None),
        (torch.tensor([0]), torch.ones(1, H + 1)),
        (torch.tensor([0, 1]), good),
        (torch.tensor([0]), good.double()),
        (torch.tensor([99]), good),
    ]:
        store = RowStore(4, H, torch.float32, "cpu")
        assert store.broken is None
        store.write(slots, states)
        assert store.broken


def test_raw_rows() -> None:
    """A span of positions, named positions in their own order, and none; with and without vectors beside them."""
    store, states = filled()
    slots = torch.tensor([[5, 1, 30, 7, 0]], dtype=torch.int32)
    selections = [Placed(0, Rows(1, 4)), Placed(0, Rows(0, 5, (4, 0, 4))), Placed(0, Rows(2, 2))]
    for others in ([], [Placed(0, Pool(0, 2))]):
        brought = taken(RowReader(store.rows, slots, 128).start(grouped(*others, *selections)))
        assert (brought.hidden_size, brought.dtype) == (H, "float32")
        for found, expected in zip(tensors_of(brought, Rows), ([1, 30, 7], [0, 5, 0], []), strict=True):
            assert torch.equal(found, states[expected])


def test_raw_rows_alone_come_with_no_vectors() -> None:
    """Nothing of a kind that nobody wants."""
    rows = torch.ones((4, 8), dtype=torch.bfloat16)
    reader = RowReader(rows, torch.arange(4, dtype=torch.int32)[None], 128)
    brought = taken(reader.start(grouped(Placed(0, Rows(1, 3)))))
    assert [tensors_of(brought, read) for read in (Pool, Top)] == [[], []]
    assert torch.equal(tensors_of(brought, Rows)[0], rows[1:3])
    assert brought.dtype == "bfloat16"
