"""Sizes of warm-up steps, with which every kernel is compiled that Triton tells apart."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import triton

from tessera_patches.tilespec.start.profile import _kinds_of_tiers, _sizes

TIERS = [8, 16, 24, 32, 40, 48, 56, 64, *range(80, 257, 16), *range(288, 513, 32), *range(576, 1537, 64)]


def compiled(size: int) -> tuple[int, bool, bool]:
    """What a kernel of a size is compiled for: a block with room, and whether the number is 1 or 16 divides it."""
    return triton.next_power_of_2(size), size == 1, size % 16 == 0


@pytest.mark.parametrize("most", [1, 2, 7, 8, 12, 16, 100, 128, 256])
def test_each_batch_that_can_come_has_one_of_its_kind_among_the_warm_up_steps(most: int) -> None:
    """Each once, and the greatest of all: what it allocates is there before requests wait for it."""
    sizes = _sizes(most)
    assert {compiled(size) for size in sizes} == {compiled(size) for size in range(1, most + 1)}
    assert sizes[-1] == most
    assert len(sizes) == len({compiled(size) for size in sizes})


@pytest.mark.parametrize("most", [4, 24, 128])
def test_each_tier_has_one_of_its_kind_among_the_warm_up_steps(most: int) -> None:
    """By how many requests its graph is for, and by its tokens."""
    ragged = SimpleNamespace(slots=lambda tier: min(tier, most))

    def kinds(tiers: list[int]) -> set[object]:
        return {(compiled(ragged.slots(tier)), tier % 16) for tier in tiers}

    tiers = _kinds_of_tiers(TIERS, ragged)
    assert set(tiers) <= set(TIERS)
    assert kinds(tiers) == kinds(TIERS)
    assert len(tiers) < len(TIERS) / 4
