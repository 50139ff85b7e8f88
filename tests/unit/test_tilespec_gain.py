"""What drafts promise, by what was counted: depths that were not drafted, requests that were not seen."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.testing.tilespec import chain, histogram_of
from tessera.tilespec.gain import Survivals


def test_depths_that_were_not_drafted_are_extrapolated() -> None:
    """From one drafted depth: each survival shrinks by the mean acceptance of the depths behind it."""
    survival = np.array([[0.9], [0.5], [0.5], [0.1]])
    known = Survivals(3, [0, 1, 2, 3], np.array([0.7, 0.7, 0.7]))
    whole = known.stretch + np.arange(4)
    np.testing.assert_allclose(known.gain(whole), np.cumsum([0, 0.7, 0.7**2, 0.7**3]))
    known.assume(np.array([0.7, 0.8, 0.5]))
    for _ in range(1000):
        known.update(histogram_of(survival, 3), 1)
        known.gain(known.stretch)
    totals = survival.sum() / 4 * np.array([0, 1, 1 + 0.8, 1 + 0.8 + 0.4])
    np.testing.assert_allclose(known.gain(whole), totals, rtol=1e-3)
    items = np.sort(np.concatenate([survival * f for f in (1, 0.8, 0.4)], axis=None))[::-1]
    for k in range(13):
        found = known.gain(np.array([k / 4 + known.stretch[3]]))[0] * 4
        assert found == pytest.approx(items[:k].sum(), abs=0.01), k


def test_requests_that_join_are_like_those_of_before() -> None:
    """Two hundred steps of 32 requests, then forty of one whose drafts fail: it says little of others."""
    known = Survivals(3, [0, 3], np.full(3, 0.7))
    all_drafts = known.stretch[1:] + 3

    def counted(survival: float, requests: int, steps: int) -> float:
        for _ in range(steps):
            known.update(histogram_of(chain(survival, 1.0, 1.0, bs=requests), 3), 3)
            found = known.gain(all_drafts)[0]
        return float(found)

    good = counted(0.9, 32, 200)
    bad = counted(0.1, 1, 40)
    assert (good, bad) == pytest.approx((2.7, 0.3 + 2.4 * (32 / 33) ** 40), rel=0.01)
    known.renew(1, 4)
    assert known.gain(all_drafts)[0] == pytest.approx(bad + (good - bad) / 4, rel=0.02)
    known.renew(7, 4)
    assert known.gain(all_drafts)[0] == pytest.approx(good, rel=0.03)
