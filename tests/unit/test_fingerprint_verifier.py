"""Distances between claimed and own values, and what the thresholds make of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.capabilities.fingerprints import codec
from tessera.capabilities.fingerprints.codec import Bits
from tessera.capabilities.fingerprints.selection import row_mask, value_count
from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.capabilities.fingerprints.verifier import NO_MATCH, Distance, as_text, compare_bits, distances
from tessera.errors import StartRefused
from tessera.rows.chunks import complete, count, layout
from tessera.rows.reads import ALL_ROWS, Points


def bits(*values: float) -> Bits:
    """As bfloat16."""
    return torch.tensor(values).bfloat16().view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize(
    ("claimed", "own", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], Distance(0, 0, 0)),
        ([1.0078125, 2, 3], [1, 2, 3], Distance(0, 1 / 3, 0)),
        ([1.0078125, 2], [1, 2], Distance(0, 0.5, 0.5)),
        ([4, 2, 3], [1, 2, 3], Distance(1, 0, 0)),
        ([-1, -2, -3], [1, 2, 3], Distance(3, NO_MATCH, NO_MATCH)),
        ([0.0, 1], [-0.0, 1], Distance(0, 0, 0)),
        ([float("nan"), 1], [1, 1], Distance(1, 0, 0)),
    ],
)
def test_distance(claimed: list[float], own: list[float], expected: Distance) -> None:
    """Exponents and signs by equality, mantissas by difference; an even median is a mean. Each row by itself."""
    theirs, ours = bits(*claimed), bits(*own)
    found = compare_bits(np.stack([ours, theirs]), np.stack([ours, ours]))
    assert found == [Distance(0, 0, 0), expected]


def test_distances_of_different_sizes() -> None:
    """Each fingerprint is compared with its own chunk."""
    own = [Points(np.arange(k), bits(*range(1, k + 1))) for k in (3, 5, 3)]
    changed = [*own[:2], Points(own[2].places, bits(1, 2, -3))]
    assert [one.exp_mismatches for one in distances(codec.build(own), changed)] == [0, 0, 1]


def test_text() -> None:
    """As the guide shows it."""
    assert json.loads(as_text([Distance(1, 0.75, 0.5)], one=True)) == {
        "exp_mismatches": 1,
        "mant_err_mean": 0.75,
        "mant_err_median": 0.5,
    }
    assert len(json.loads(as_text([Distance(1, 0.75, 0.5)], one=False))) == 1


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (Distance(38, 10, 8), True),
        (Distance(39, 0, 0), False),
        (Distance(0, 10.01, 0), False),
        (Distance(0, 0, 8.5), False),
        (Distance(90, 0, 0), False),
        (Distance(128, NO_MATCH, NO_MATCH), False),
    ],
)
def test_the_papers_thresholds(found: Distance, *, passes: bool) -> None:
    """At most 38 of 128 exponents differ: 90 must match."""
    assert (Thresholds().why_failed([found], [128]) == "") is passes


def test_thresholds_of_fewer_values() -> None:
    """The share counts."""
    assert (
        Thresholds().why_failed([Distance(19, 0, 0), Distance(20, 0, 0)], [64, 64])
        == "fingerprint 1: exp_mismatches 20 > 19"
    )


def test_thresholds_from_a_file(tmp_path: Path) -> None:
    """What is written is read; what is none refuses the start."""
    path = tmp_path / "thresholds.json"
    wanted = Thresholds(12 / 128, 2.5, 1.0)
    path.write_text(json.dumps({"topk": 128, "thresholds": wanted.for_values(128)}))
    assert Thresholds.load(path) == wanted
    for broken in (
        "",
        "{}",
        '{"topk": 0, "thresholds": {}}',
        '{"topk": 128, "thresholds": {"exp_mismatches": NaN, "mant_err_mean": 1, "mant_err_median": 1}}',
        "[" * 100_000,
    ):
        path.write_text(broken)
        with pytest.raises(StartRefused, match="--toploc-thresholds"):
            Thresholds.load(path)
    with pytest.raises(StartRefused, match="--toploc-thresholds"):
        Thresholds.load(tmp_path / "missing.json")


@pytest.mark.parametrize("generated", range(100))
def test_layout(generated: int) -> None:
    """Each row is in one fingerprint, and there are as many as counted, while it runs as well."""
    spans = layout(7, 7 + generated)
    assert [row for start, end in spans for row in range(start, end)] == list(range(7 + generated))
    assert len(spans) == count(generated)
    assert complete(generated + 1) == sum(end - start == 32 or start == 0 for start, end in spans)


def test_nonces() -> None:
    """They choose about half of the rows, another half for each chunk and nonce, and never none."""
    masks = {row_mask(nonce, index, 32) for nonce in ("a", "b") for index in range(200)}
    assert len(masks) == 400
    assert 14 < sum(mask.bit_count() for mask in masks) / 400 < 18
    assert all(row_mask("a", index, 1) & 1 for index in range(100))
    assert row_mask(None, 5, 32) == ALL_ROWS
    assert value_count(0b101, 35, 16, 1000) == 16 * 4
