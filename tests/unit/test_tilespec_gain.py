"""What drafts promise, by what was counted: depths that were not drafted, requests that were not seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tessera.tilespec.calibration import Calibration
from tessera.tilespec.gain import Survivals
from tessera.tilespec.policy import Policy
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS
from tessera_testing.tilespec import chain, expected_gain, histogram_of, simple_costs, survivals_of


def test_what_compiled_code_would_write_elsewhere_is_refused() -> None:
    """It looks at no bounds: a place beyond an array's end would be somebody else's memory."""
    mean, ratio = np.full(3, 0.7), np.ones(3)
    for steps in ([0, 4], [0, 3, 1]):
        with pytest.raises(ValueError, match=r"steps: got \[0, .*\]; allowed: ascending, at most 3, the depths"):
            Survivals(3, steps, mean, ratio)
    known = Survivals(3, [0, 1, 3], mean, ratio)
    for wrong in (np.full(3, 1.5), np.full(3, -0.1), np.full(3, np.nan)):
        with pytest.raises(ValueError, match=r"mean acceptance: got .* allowed: 0 to 1"):
            known.set_prior(wrong, ratio)
    for means, ratios in ((mean[:2], ratio), (mean, ratio[:2])):
        with pytest.raises(ValueError, match=r"of 3 depths"):
            known.set_prior(means, ratios)
    for depths, drafted in ((3, 0), (3, 4), (2, 2), (4, 3)):
        with pytest.raises(ValueError, match=rf"{drafted} drafted: got a histogram of"):
            known.update(np.zeros((2, depths, HISTOGRAM_BINS), np.int32), drafted)
    for rows, columns in ((2, 5), (4, 5), (3, 4)):
        with pytest.raises(ValueError, match=r"of 3 numbers of steps"):
            known.read(np.zeros((rows, 5)), np.zeros((rows, columns)))


WITHOUT_NUMBA = """
import json, sys
sys.modules["numba"] = None
from test_tilespec_gain import what_is_compiled

print(json.dumps(what_is_compiled()))
"""


def what_is_compiled() -> list[list[float]]:
    """What survivals promise, a table, and choices that follow."""
    known = survivals_of(chain(0.9, 0.7, 0.5), [0, 1, 3], 3)
    table = Calibration(3)
    counts = np.arange(3 * table.trials.size, dtype=np.int32).reshape(3, *table.trials.shape)
    table.update(counts[::-1].copy())
    policy = Policy(simple_costs(verify=0.05), known)
    choices = [policy.search(4, 100 * step) for step in range(6)]
    return [
        expected_gain(known, 0.5, 1.5, 3).ravel().tolist(),
        table.acceptance().ravel().tolist(),
        [value for choice in choices for value in (choice.steps, choice.tokens, choice.gain, choice.seconds)],
    ]


def test_without_numba_the_same_comes_out() -> None:
    """Of the same Python, and one line says why it takes long."""
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ran = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True, env=here)
    assert ran.stderr.count("numba is not installed") == 1
    for without, compiled in zip(json.loads(ran.stdout), what_is_compiled(), strict=True):
        np.testing.assert_allclose(without, compiled, rtol=1e-12)


def test_depths_that_were_not_drafted_are_extrapolated() -> None:
    """From one drafted depth: each survival shrinks by the mean acceptance of the depths behind it."""
    survival = np.array([[0.9], [0.5], [0.5], [0.1]])
    known = Survivals(3, [0, 1, 2, 3], np.array([0.7, 0.7, 0.7]), np.ones(3))
    np.testing.assert_allclose(expected_gain(known, 3)[:, 0], np.cumsum([0, 0.7, 0.7**2, 0.7**3]))
    known.set_prior(np.array([0.7, 0.8, 0.5]), np.ones(3))
    for _ in range(1000):
        known.update(histogram_of(survival, 3), 1)
    totals = survival.sum() / 4 * np.array([0, 1, 1 + 0.8, 1 + 0.8 + 0.4])
    np.testing.assert_allclose(expected_gain(known, 3)[:, 0], totals, rtol=1e-3)
    items = np.sort(np.concatenate([survival * f for f in (1, 0.8, 0.4)], axis=None))[::-1]
    for k in range(13):
        found = expected_gain(known, k / 4)[3, 0] * 4
        assert found == pytest.approx(items[:k].sum(), abs=0.01), k


def waves_that_get_better(known: Survivals) -> float:
    """Twenty waves of 32 requests, whose drafts are right more often from the second step on; the last promise."""
    for _ in range(20):
        known.add_new_requests(32, 32)
        for survival in (0.5, *[0.9] * 10):
            known.update(histogram_of(chain(survival, 1.0, 1.0, bs=32), 3), 3, known.stamp(4).freshness)
            found = expected_gain(known, 3)[1, 0]
    return float(found)


def test_requests_that_join_are_like_others_when_they_began() -> None:
    """Not like those of a wave that is nearly over, and not like one straggler of it, whose drafts fail."""
    known = Survivals(3, [0, 3], np.full(3, 0.7), np.ones(3))
    new, old = 3 * (0.5 * 0.7 + 0.9 * 0.3), 3 * 0.9  # of the weight three tenths are later steps
    assert waves_that_get_better(known) == pytest.approx(old, rel=1e-3)
    for _ in range(40):
        known.update(histogram_of(chain(0.1, 1.0, 1.0, bs=1), 3), 3, known.stamp(4).freshness)
        straggler = expected_gain(known, 3)[1, 0]
    assert straggler == pytest.approx(0.3 + 2.4 * (8 / 9) ** 40, rel=0.01)
    known.add_new_requests(1, 4)
    assert expected_gain(known, 3)[1, 0] == pytest.approx(straggler + (new - straggler) / 4, rel=0.03)
    known.add_new_requests(7, 4)
    assert expected_gain(known, 3)[1, 0] == pytest.approx(new, rel=0.03)


def test_what_arrives_late_is_of_the_batch_that_it_was_counted_in() -> None:
    """The end of a wave says nothing of the next one; how requests began is learnt, however late it arrives."""
    known = Survivals(3, [0, 3], np.full(3, 0.7), np.ones(3))
    known.add_new_requests(32, 32)
    first, last = known.stamp(4), known.stamp(1)
    assert first.freshness == 1
    assert last.freshness < 1
    known.add_new_requests(15, 32)  # most are still those that were there
    assert known.is_current(last)
    known.add_new_requests(16, 32)
    assert not known.is_current(last)
    assert known.stamp(1).freshness > 0.5
    before = expected_gain(known, 3)[1, 0]
    old = histogram_of(chain(0.1, 1.0, 1.0, bs=32), 3)
    known.update(old, 3, 0.0, current=False)
    assert expected_gain(known, 3)[1, 0] == before
    known.add_new_requests(32, 32)
    assert expected_gain(known, 3)[1, 0] == pytest.approx(before)
    known.update(old, 3, first.freshness, current=False)
    assert expected_gain(known, 3)[1, 0] == pytest.approx(before)
    known.add_new_requests(32, 32)
    assert expected_gain(known, 3)[1, 0] == pytest.approx(0.3, abs=0.05)
