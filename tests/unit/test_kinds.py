"""Each kind of read: what it launches goes through a message, and comes out as its value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tessera.delivery.outcome import Outcome, Part, pack, unpack
from tessera.rows.kinds import BY_READ, KINDS, Placed, is_finite
from tessera.rows.reader import RowReader
from tessera.rows.reads import Points, Pool, Pooled, PromptIds, RawRows, Rows, Top
from tessera_testing.reads import grouped

H = 8
TOPK = 16
SLOTS = torch.tensor([[5, 1, 30, 7, 0], [2, 3, 4, 9, 11]], dtype=torch.int32)
IDS = [3, 1, 2]
ALL = 0xFFFF_FFFF


def random_rows(dtype: torch.dtype) -> torch.Tensor:
    """A row store."""
    return torch.randn(32, H, generator=torch.Generator().manual_seed(1)).to(dtype)


def outcome(key: str, *reads: Any) -> Outcome:
    """As the scheduler notes it."""
    parts = []
    for read in reads:
        kind = BY_READ[type(read)]
        parts.append(Part("own", kind.name, kind.note(IDS if isinstance(read, PromptIds) else read)))
    return Outcome(key, tuple(parts))


def delivered(rows: torch.Tensor, *requests: tuple[int, tuple[Any, ...]]) -> list[list[Any]]:
    """The values of each request that is in a row of the map and reads this."""
    placed = [Placed(row, read) for row, reads in requests for read in reads if not isinstance(read, PromptIds)]
    fetched = RowReader(rows, SLOTS, TOPK).start(grouped(*placed)).result() if placed else None
    outcomes = [outcome(str(i), *reads) for i, (_, reads) in enumerate(requests)]
    found, _ = unpack([bytes(frame) for frame in pack(outcomes, fetched)])
    assert [own.outcome for own in found] == outcomes
    return [list(own.values["own"]) for own in found]


def test_each_kind_once() -> None:
    """By its read and by its name."""
    assert len({kind.name for kind in KINDS}) == len(BY_READ) == len(KINDS)
    assert set(BY_READ) == {Pool, Rows, Top, PromptIds}


def test_pool() -> None:
    """Means and largest values of two requests, and one of no rows."""
    rows = random_rows(torch.float32)
    pools = (Pool(0, 4), Pool(5, 5), Pool(2, 3)), (Pool(1, 5, largest=True), Pool(3, 3, largest=True))
    first, second = delivered(rows, (0, pools[0]), (1, pools[1]))
    expected = [rows[[5, 1, 30, 7]].mean(0), None, rows[30], rows[[3, 4, 9, 11]].amax(0), None]
    assert [own.tokens for own in (*first, *second)] == [4, 0, 1, 4, 0]
    for own, vector in zip((*first, *second), expected, strict=True):
        assert (own.vector is None) == (vector is None)
        if vector is not None:
            np.testing.assert_allclose(own.vector, vector.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows(dtype: torch.dtype) -> None:
    """A span, positions in their own order, and none: bit by bit, in the model's dtype."""
    rows = random_rows(dtype)
    (found,) = delivered(rows, (0, (Rows(1, 4), Rows(0, 5, (4, 0, 4)), Rows(2, 2))))
    for own, slots in zip(found, ([1, 30, 7], [0, 5, 0], []), strict=True):
        assert bytes(own.rows) == rows[slots].view(torch.uint8).numpy().tobytes()
        assert (own.dtype, own.shape) == (str(dtype).removeprefix("torch."), (len(slots), H))


def test_top() -> None:
    """The values of largest magnitude, of all rows and of those of a mask, in bfloat16."""
    rows = random_rows(torch.bfloat16)
    whole, masked = Top(0, 4, ALL, TOPK), Top(1, 5, 0b0101, 2 * H)
    (found, chosen) = delivered(rows, (0, (whole,)), (1, (masked,)))
    for (own,), slots, picked, count in (
        (found, [5, 1, 30, 7], [0, 1, 2, 3], TOPK),
        (chosen, [3, 4, 9, 11], [0, 2], 2 * H),
    ):
        values = rows[slots].flatten()
        allowed = np.concatenate([np.arange(row * H, (row + 1) * H) for row in picked])
        assert len(own.places) == len(own.bits) == count
        assert len(set(own.places.tolist())) == count
        assert set(own.places.tolist()) <= set(allowed.tolist())
        assert own.bits.tolist() == values.view(torch.int16).numpy().view("<u2")[own.places].tolist()
        others = np.setdiff1d(allowed, own.places)
        if len(others):
            magnitude = values.float().abs().numpy()
            assert magnitude[own.places].min() >= magnitude[others].max()


def test_prompt_ids() -> None:
    """They need no read, and ride as they are."""
    assert delivered(random_rows(torch.float32), (0, (PromptIds(),))) == [[IDS]]
    assert not outcome("a", PromptIds()).has_rows
    assert outcome("a", PromptIds(), Rows(0, 0)).has_rows


def test_all_kinds_of_several_requests_in_one_message() -> None:
    """Each value comes back to its own request, in the order of its reads."""
    rows = random_rows(torch.float32)
    reads = (Rows(0, 2), Pool(0, 4), PromptIds(), Top(0, 4, ALL, TOPK), Rows(3, 4))
    for values in delivered(rows, (0, reads), (1, reads)):
        assert [type(own) for own in values] == [RawRows, Pooled, list, Points, RawRows]
        assert [own.shape for own in values if isinstance(own, RawRows)] == [(2, H), (1, H)]
    first, second = delivered(rows, (0, (Rows(0, 1), Pool(0, 1))), (1, (Pool(0, 1), Rows(0, 1))))
    assert bytes(first[0].rows) == first[1].vector.tobytes() == rows[5].numpy().tobytes()
    assert bytes(second[1].rows) == second[0].vector.tobytes() == rows[2].numpy().tobytes()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1.0])
def test_finite(number: float) -> None:
    """Of every kind of value; ids always are."""
    finite = number == 1.0
    vector = np.array([0, number], np.float32)
    bits = torch.tensor([0, number], dtype=torch.bfloat16).view(torch.int16).numpy().view("<u2")
    assert is_finite(Pooled(vector, 1)) == finite
    assert is_finite(RawRows(vector.tobytes(), "float32", (1, 2))) == finite
    assert is_finite(Points(np.arange(2), bits)) == finite
    assert is_finite(Pooled(None, 0))
    assert is_finite(RawRows(b"", "bfloat16", (0, 2)))
    assert is_finite([1, 2])
