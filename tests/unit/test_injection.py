"""Places, cache keys, the wire, and putting vectors where they belong."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tessera.capabilities.inject.decoded import Decoded
from tessera.capabilities.inject.injection import ADD, MATCHED, Injection
from tessera.capabilities.inject.keys import FIRST_KEY, KeyedIds, keys_of
from tessera.capabilities.inject.options import Neighbours
from tessera.capabilities.inject.place import Piece, place, plan
from tessera.capabilities.inject.resolve import resolve
from tessera.errors import BadRequest

H = 4
IDS = [5, 6, 7, 6, 8, 9]
SEVEN = "seven"
WORDS = {"seven": [7], "two words": [1, 2]}


def vectors_of(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that differ."""
    return torch.arange(1, rows * H + 1).reshape(rows, H).to(dtype)


def found(*overrides: Decoded, ids: Sequence[int] = IDS) -> Injection:
    """Resolved against the ids, with a tokenizer that knows two texts."""
    return resolve(overrides, ids, 100, WORDS.__getitem__)


def test_ordered_by_position() -> None:
    """Each vector keeps its position."""
    one = Decoded("a", vectors_of(2), positions=(5, 0))
    two = Decoded("b", vectors_of(1) * 10, add=True, matched=True, positions=(2,))
    injection = found(one, two)
    assert injection.positions.tolist() == [0, 2, 5]
    assert injection.flags.tolist() == [0, ADD | MATCHED, 0]
    assert injection.vectors[:, 0].tolist() == [5, 10, 1]


def test_found_by_a_token() -> None:
    """By id and by text, in the order of the prompt."""
    assert found(Decoded("a", vectors_of(2), token=6)).positions.tolist() == [1, 3]
    assert found(Decoded("a", vectors_of(1), token=SEVEN)).positions.tolist() == [2]
    beside = Neighbours(left=6, right=6)
    assert found(Decoded("a", vectors_of(1), token=7, neighbours=beside)).positions.tolist() == [2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": (6,)}, "a.positions: got 6"),
        ({"token": 6}, "6, 2 times in the prompt"),
        ({"token": 50}, "50, 0 times in the prompt"),
        ({"token": "two words"}, "this is 2"),
        ({"positions": (0,), "neighbours": Neighbours(left=5)}, "the prompt's edge at position -1"),
        ({"positions": (5,), "neighbours": Neighbours(right=5)}, "the prompt's edge at position 6"),
        ({"positions": (2,), "neighbours": Neighbours(right="seven")}, "token 6 at position 3"),
    ],
)
def test_places_that_are_refused(fields: dict[str, Any], message: str) -> None:
    """What stands there instead is told."""
    with pytest.raises(BadRequest) as caught:
        found(Decoded("a", vectors_of(1), **fields))
    assert message in str(caught.value)


def test_a_position_twice() -> None:
    """Also in two objects."""
    for overrides in (
        [Decoded("a", vectors_of(2), positions=(1, 1))],
        [Decoded("a", vectors_of(1), positions=(1,)), Decoded("a", vectors_of(1), token=6, positions=(1,))],
    ):
        with pytest.raises(BadRequest, match="each position once"):
            found(*overrides)


@pytest.mark.parametrize("ids", [[], [5, 100], [5, -1], [5, 2**70]])
def test_ids_that_would_end_the_scheduler(ids: list[int]) -> None:
    """None may get there."""
    with pytest.raises(BadRequest):
        found(Decoded("a", vectors_of(1), positions=(0,)), ids=ids)


def test_a_text_on_a_server_without_a_tokenizer() -> None:
    """It needs an id."""
    with pytest.raises(BadRequest, match="no tokenizer"):
        resolve([Decoded("a", vectors_of(1), token=SEVEN)], IDS, 100, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_wire(dtype: torch.dtype) -> None:
    """What comes out is what went in."""
    sent = found(Decoded("a", vectors_of(3, dtype), add=True, positions=(4, 0, 1)))
    got = Injection.from_wire(sent.to_wire())
    for name in ("positions", "keys", "flags"):
        assert np.array_equal(getattr(got, name), getattr(sent, name))
    assert got.vectors.dtype is dtype
    assert torch.equal(got.vectors, sent.vectors)


def key(token: int = 5, flag: int = 0, vector: torch.Tensor | None = None, secret: bytes = b"s") -> int:
    """One key."""
    vector = vectors_of(1) if vector is None else vector
    return int(keys_of([token], np.array([flag], np.uint8), vector, secret)[0])


def test_keys_differ_where_kv_differs() -> None:
    """Vector, dtype, mode, token, server; the same of all of them is the same key, and none is a token id."""
    keys = [
        key(),
        key(token=6),
        key(flag=ADD),
        key(flag=MATCHED),
        key(vector=-vectors_of(1)),
        key(vector=vectors_of(1, torch.bfloat16)),
        key(vector=torch.zeros(1, H)),
        key(vector=-torch.zeros(1, H)),
        key(secret=b"t"),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    assert all(FIRST_KEY <= one < 2**63 for one in keys)


def test_ids_hidden_and_shown() -> None:
    """In place; what lies beyond the end of a cut prompt is left out."""
    injection = found(Decoded("a", vectors_of(2), positions=(1, 5)))
    plain = array("q", IDS)
    keyed = KeyedIds(injection, plain)
    ids = plain + array("q", [1, 2])
    keyed.hide(ids)
    assert ids.tolist() == [5, injection.keys[0], 7, 6, 8, injection.keys[1], 1, 2]
    prefix = ids[:3]
    keyed.show(ids)
    keyed.show(prefix)
    assert ids.tolist() == [*IDS, 1, 2]
    assert prefix.tolist() == IDS[:3]
    ids.append(3)  # no view of it is kept
    keyed.hide(array("q", [0]))


def test_a_forward_gets_its_part() -> None:
    """A chunk of one request behind the tokens of another."""
    injection = found(Decoded("a", vectors_of(4), positions=(0, 2, 3, 5)))
    assert plan([Piece(injection, 4, 5, 0)], "cpu") is None
    made = plan([Piece(injection, 2, 4, 10), Piece(injection, 0, 6, 12)], "cpu")
    assert made is not None
    assert made.positions.tolist() == [10, 11, 12, 14, 15, 17]
    assert made.vectors[:, 0].tolist() == [5, 9, 1, 5, 9, 13]
    assert made.flags is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_placed(dtype: torch.dtype) -> None:
    """Replaced, added, brought to the length of what is there, both."""
    torch.manual_seed(0)
    embeds, vectors = torch.randn(6, H).to(dtype), torch.randn(4, H)
    flags = np.array([0, ADD, MATCHED, ADD | MATCHED], np.uint8)
    injection = Injection(np.array([0, 1, 3, 5]), np.zeros(4, np.int64), flags, vectors)
    made = plan([Piece(injection, 0, 6, 0)], "cpu")
    assert made is not None
    placed = place(embeds.clone(), made)
    base, exact = embeds.double(), vectors.double()
    lengths = base.norm(dim=1)
    expected = base.clone()
    expected[0], expected[1] = exact[0], base[1] + exact[1]
    expected[3] = exact[2] * lengths[3] / exact[2].norm()
    expected[5] = base[5] + exact[3] * lengths[5] / exact[3].norm()
    assert torch.allclose(placed.double(), expected, rtol=1e-6 if dtype is torch.float32 else 2**-8)
    assert torch.equal(placed[[2, 4]], embeds[[2, 4]])


def test_replaced_bits_are_the_clients() -> None:
    """Not passed through any arithmetic."""
    vectors = torch.tensor([[1.0, -0.0, 65504.0, 6e-8]], dtype=torch.float16)
    injection = Injection(np.array([1]), np.zeros(1, np.int64), np.zeros(1, np.uint8), vectors)
    made = plan([Piece(injection, 0, 2, 0)], "cpu")
    assert made is not None
    placed = place(torch.ones(2, H, dtype=torch.float16), made)
    assert torch.equal(placed[1].view(torch.int16), vectors[0].view(torch.int16))
