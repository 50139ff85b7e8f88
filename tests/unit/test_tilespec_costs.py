"""The cost table: what was measured of it, what is between, and what corrects it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tessera.tilespec.costs import COMMON_WEIGHT, MIN_WEIGHT, OUTLIER_LIMIT, Correction, CostTable, Curve
from tessera.tilespec.whole_steps import with_whole_steps
from tessera_testing.tilespec import random_costs, simple_costs


def factors(correction: Correction) -> list[float]:
    """Of all kinds."""
    return [correction.factor(kind) for kind in range(5)]


def test_correction() -> None:
    """A kind of step that is slower than profiled is found, what slows all down alike is not blamed on one."""
    correction = Correction(5)
    for _ in range(400):
        for kind, odd in ((0, 1.0), (1, 1.5), (2, 1.0)):
            correction.observe(kind, 2.0, 2.0 * 1.2 * odd)
    np.testing.assert_allclose(factors(correction), [1.2, 1.8, 1.2, 1.2, 1.2], rtol=5e-3)
    before = factors(correction)
    for measured in (float("nan"), 0.0, -1.0, float("inf")):
        correction.observe(1, 1.0, measured)
    np.testing.assert_array_equal(factors(correction), before)
    correction.observe(2, 1.0, 1e9)  # a pause of the host, say
    assert factors(correction)[2] <= before[2] * (1 + (MIN_WEIGHT + COMMON_WEIGHT) * OUTLIER_LIMIT) + 1e-9
    assert correction.measured.tolist() == [400, 400, 401, 0, 0]


def test_a_slow_phase_does_not_favour_what_was_timed_before_it() -> None:
    """All steps take a fifth longer: the kind that runs shows it, and the others are not taken for faster."""
    correction = Correction(5)
    for _ in range(100):
        for kind in (0, 1):
            correction.observe(kind, 2.0, 2.0)
    for _ in range(50):
        correction.observe(0, 2.0, 2.4)
    running, timed_before, never = np.array(factors(correction))[[0, 1, 4]]
    assert running == pytest.approx(1.2, rel=0.01)
    assert min(timed_before, never) > 0.95 * running


def test_disturbed_steps_count_little_unless_most_are() -> None:
    """A kind that only runs where requests end does not look slow, and stays unknown; without others all are right."""
    correction = Correction(5)
    for step in range(1000):
        correction.observe(0, 2.0, 2.0)
        if step > 500 and step % 100 > 95:
            correction.observe(1, 2.0, 2.4, disturbed=True)
    common, own = factors(correction)[:2]
    assert common == pytest.approx(1.0, abs=0.01)
    assert own == pytest.approx(1.0, abs=0.01)
    assert correction.measured[1] == 0
    correction = Correction(5)
    for _ in range(1000):
        correction.observe(1, 2.0, 2.4, disturbed=True)
    np.testing.assert_allclose(factors(correction), 1.2, rtol=0.01)


def test_a_curve_keeps_its_peaks_and_goes_on() -> None:
    """What was measured stays; beyond the last size the last slope counts, if it rises."""
    curve = Curve([1, 2, 4, 8], [1.0, 3.0, 2.0, 5.0])
    np.testing.assert_allclose(curve.at([1, 2, 3, 4, 6, 8, 10]), [1, 3, 2.5, 2, 3.5, 5, 6.5])
    np.testing.assert_allclose(Curve([1, 2], [3.0, 2.0]).at([2, 9]), [2, 2])
    assert Curve([4], [2.0]).at(1) == 2
    assert Curve([4], [2.0]).at(8) == 4
    for sizes, seconds in (
        ([], []),
        ([1, 1], [1, 1]),
        ([2, 1], [1, 1]),
        ([1], [float("nan")]),
        ([1], [-1.0]),
        ([0], [1]),
    ):
        with pytest.raises(ValueError, match=r"must"):
            Curve(sizes, seconds)


def test_a_cost_table_survives_json() -> None:
    """And a damaged one is a ValueError, whatever is wrong with it."""
    costs = random_costs(np.random.default_rng(1), [0, 1, 3], 4)
    content = costs.to_json()
    assert CostTable.from_json(content).to_json() == content
    for key in content:
        for value in (None, "x", [1], {"1": 2}, {"0": {"sizes": [1], "seconds": [1]}}, -1, float("nan")):
            if key == "batch_sizes" and value in ([1], {"1": 2}):
                continue
            if key == "tiers" and value is None:
                continue
            with pytest.raises(ValueError, match=r"."):
                CostTable.from_json({**content, key: value})
        with pytest.raises(ValueError, match=r"."):
            CostTable.from_json({k: v for k, v in content.items() if k != key})


def test_whole_steps_complete_a_profile_of_graphs() -> None:
    """The share of cached tokens of each number of draft steps, and what is between the graphs, are found again."""
    graphs = simple_costs(verify=0.05)
    true = dataclasses.replace(graphs, kv_seconds={0: 1e-5, 1: 1.5e-5, 3: 3e-5}, host_seconds=0.2)
    contexts = [100, 800, 1600]
    kv = np.array([true.kv_seconds[s] for s in true.steps])
    seconds = np.array([true.around_verify(4) + true.verify_uniform(4) + 4 * c * kv for c in contexts])
    found = with_whole_steps(graphs, 4, contexts, seconds)
    assert found.host_seconds == pytest.approx(0.2)
    assert found.kv_seconds == pytest.approx(true.kv_seconds)
    falling = with_whole_steps(graphs, 4, contexts, seconds[::-1] - 5)
    assert falling.kv_seconds == dict.fromkeys(graphs.steps, 0.0)
    assert falling.host_seconds == 0
    alone = with_whole_steps(graphs, 4, contexts[:1], seconds[:1])
    assert alone.kv_seconds == dict.fromkeys(graphs.steps, 0.0)
