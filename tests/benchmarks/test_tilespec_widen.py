"""Widening: shares, cancelling pairs, exactness of the weights, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_training.shapes import Shape

from tilespec.widen import Widening, cancelling, shares

NARROW = Shape(hidden=8, intermediate=6, layers=2, heads=2, kv_heads=1, head_dim=4, vocabulary=20)
WIDE = Shape(hidden=32, intermediate=34, layers=5, heads=8, kv_heads=4, head_dim=4, vocabulary=50)


def test_shares_of_a_neuron_add_up_to_one() -> None:
    """Each neuron is there, with powers of two that sum to 1."""
    for count, wanted in ((6, 34), (6, 6), (5, 16), (2816, 14336)):
        places, parts = shares(count, wanted)
        assert len(places) == wanted
        assert torch.equal(torch.zeros(count).index_add(0, places, parts), torch.ones(count))
        assert torch.equal(torch.log2(parts), torch.log2(parts).round())


def test_pairs_cancel() -> None:
    """Each neuron of an added layer has as much with one sign as with the other."""
    places, parts = cancelling(6, 34)
    assert len(places) == 34
    assert torch.equal(torch.zeros(6).index_add(0, places, parts), torch.zeros(6))


def test_weights_stay_exact_in_bfloat16() -> None:
    """Dividing by powers of two loses nothing: the same as in float32."""
    widening = Widening(NARROW, WIDE)
    weight = torch.randn(6, 8).bfloat16()
    assert torch.equal(widening.reads(weight).float(), widening.reads(weight.float()))
    down = weight.T.contiguous()
    wide = widening.mlp("down_proj", down, cancel=False)
    assert wide.dtype == torch.bfloat16
    assert torch.equal(wide.float(), widening.mlp("down_proj", down.float(), cancel=False))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden": 24}, "hidden"),
        ({"heads": 4}, "heads"),
        ({"head_dim": 8}, "head_dim"),
        ({"intermediate": 4}, "intermediate"),
        ({"layers": 1}, "layers"),
        ({"vocabulary": 10}, "vocabulary"),
    ],
)
def test_what_cannot_be_reached_is_named(change: dict[str, int], named: str) -> None:
    """A shape that copies do not reach is refused."""
    with pytest.raises(ValueError, match=named):
        Widening(NARROW, replace(WIDE, **change))
