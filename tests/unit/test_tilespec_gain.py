"""What drafts promise, by what was counted: depths that were not drafted, requests that were not seen."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.testing.tilespec import chain, histogram_of, promised
from tessera.tilespec.gain import Survivals


def test_depths_that_were_not_drafted_are_extrapolated() -> None:
    """From one drafted depth: each survival shrinks by the mean acceptance of the depths behind it."""
    survival = np.array([[0.9], [0.5], [0.5], [0.1]])
    known = Survivals(3, [0, 1, 2, 3], np.array([0.7, 0.7, 0.7]), np.ones(3))
    np.testing.assert_allclose(promised(known, 3)[:, 0], np.cumsum([0, 0.7, 0.7**2, 0.7**3]))
    known.assume(np.array([0.7, 0.8, 0.5]), np.ones(3))
    for _ in range(1000):
        known.update(histogram_of(survival, 3), 1)
    totals = survival.sum() / 4 * np.array([0, 1, 1 + 0.8, 1 + 0.8 + 0.4])
    np.testing.assert_allclose(promised(known, 3)[:, 0], totals, rtol=1e-3)
    items = np.sort(np.concatenate([survival * f for f in (1, 0.8, 0.4)], axis=None))[::-1]
    for k in range(13):
        found = promised(known, k / 4)[3, 0] * 4
        assert found == pytest.approx(items[:k].sum(), abs=0.01), k


def waves_that_get_better(known: Survivals) -> float:
    """Twenty waves of 32 requests, whose drafts are right more often from the second step on; the last promise."""
    for _ in range(20):
        known.renew(32, 32)
        for survival in (0.5, *[0.9] * 10):
            known.update(histogram_of(chain(survival, 1.0, 1.0, bs=32), 3), 3)
            found = promised(known, 3)[1, 0]
    return float(found)


def test_requests_that_join_are_like_others_when_they_began() -> None:
    """Not like those of a wave that is nearly over, and not like one straggler of it, whose drafts fail."""
    known = Survivals(3, [0, 3], np.full(3, 0.7), np.ones(3))
    young, old = 3 * (0.5 * 0.75 + 0.9 * 0.25), 3 * 0.9  # of the weight a quarter is later steps
    assert waves_that_get_better(known) == pytest.approx(old, rel=1e-3)
    for _ in range(40):
        known.update(histogram_of(chain(0.1, 1.0, 1.0, bs=1), 3), 3)
        straggler = promised(known, 3)[1, 0]
    assert straggler == pytest.approx(0.3 + 2.4 * (8 / 9) ** 40, rel=0.01)
    known.renew(1, 4)
    assert promised(known, 3)[1, 0] == pytest.approx(straggler + (young - straggler) / 4, rel=0.03)
    known.renew(7, 4)
    assert promised(known, 3)[1, 0] == pytest.approx(young, rel=0.03)
