"""The fitted table: the truth is found, censoring does not bias it, and it is monotone and finite whatever comes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.tilespec import calibration
from tessera.tilespec.calibration import BINS, MAX_LOGIT, Calibration
from tessera.tilespec.gain import Survivals
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import PREDICTION_UNIT
from tessera_kernels.ops.learning.observe_acceptance import observe_acceptance
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify
from tessera_testing.tilespec import expected_gain

DEPTHS = 3


def counts(trials: npt.ArrayLike, successes: npt.ArrayLike, promised: npt.ArrayLike = 0) -> npt.NDArray[np.int32]:
    """Counts of the device, the same at every depth; ``promised`` in tokens."""
    kinds = trials, successes, np.asarray(promised) / PREDICTION_UNIT
    every = np.array([np.broadcast_to(kind, BINS) for kind in kinds])
    return np.repeat(every[:, None], DEPTHS, axis=1).astype(np.int32)


def test_bins() -> None:
    """Each bin's middle lies between its edges."""
    bin_edges, middle = calibration.bin_edges(), calibration.bin_centers()
    assert bin_edges.shape == (BINS - 1,)
    assert (np.diff(bin_edges) > 0).all()
    assert (np.searchsorted(bin_edges, middle, side="right") == np.arange(BINS)).all()


def test_before_anything_was_tried_a_draft_is_as_good_as_it_is_sure() -> None:
    """The prior is the identity."""
    np.testing.assert_allclose(Calibration(DEPTHS).acceptance()[1], calibration.bin_centers())


def test_what_all_bins_have_in_common_is_found_first() -> None:
    """A draft that is sure and always wrong: after two dozen tokens nothing of it is believed, in no bin."""
    table = Calibration(DEPTHS)
    few = np.zeros(BINS)
    few[[10, 12, 14, 18, 20, 22]] = 4
    assert calibration.bin_centers()[16] > 0.8
    table.update(counts(few, 0))
    assert table.acceptance()[0, 16] < 0.3
    assert table.acceptance()[-1, 16] < 0.1  # each depth shifts what the one before it says
    sure = np.zeros(BINS)
    sure[-1] = 500
    table.update(counts(sure, sure * 0.99))
    assert table.acceptance()[0, -1] > 0.97  # where a bin has counts of its own, they decide


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_the_isotonic_fit(seed: int) -> None:
    """Monotone, and the conditions of the least-squares solution hold (pool adjacent violators, done step by step)."""
    rng = np.random.default_rng(seed)
    values, weights = rng.random((2, 8)), rng.integers(1, 9, (2, 8)).astype(float)
    for line, weight in zip(values, weights, strict=True):
        fit = line.copy()
        calibration._isotonic(fit, weight)
        blocks = [[v, w, 1] for v, w in zip(line, weight, strict=True)]
        at = 0
        while at < len(blocks) - 1:
            if blocks[at][0] > blocks[at + 1][0]:
                (v, w, n), (v2, w2, n2) = blocks[at], blocks.pop(at + 1)
                blocks[at] = [(v * w + v2 * w2) / (w + w2), w + w2, n + n2]
                at = max(at - 1, 0)
            else:
                at += 1
        np.testing.assert_allclose(fit, np.concatenate([[v] * int(n) for v, _, n in blocks]))


@given(st.integers(0, 2**32))
def test_always_finite_and_monotone(seed: int) -> None:
    """Whatever was counted, also where the device's counters wrapped."""
    rng = np.random.default_rng(seed)
    table = Calibration(DEPTHS)
    device = np.full((3, DEPTHS, BINS), 2**31 - 5, np.int64)
    table.update(device.astype(np.int32))
    table.trials[:] = table.successes[:] = table.promised[:] = 0
    trials = rng.integers(0, 10 ** rng.integers(1, 6), (DEPTHS, BINS))
    promised = rng.integers(0, trials + 1)
    device += [trials, (trials * rng.random(BINS)).astype(np.int64), (promised / PREDICTION_UNIT).astype(np.int64)]
    table.update((device & 0xFFFFFFFF).astype(np.uint32).view(np.int32))
    assert table.trials.sum() == trials.sum()
    assert table.promised.sum() == promised.sum()
    assert np.isfinite(table.accepted_ratio()).all()
    assert (np.diff(table.acceptance(), axis=1) >= -1e-12).all()
    assert (np.abs(table.logits()) <= MAX_LOGIT).all()
    assert ((table.mean() > 0) & (table.mean() < 1)).all()


def test_old_counts_fade() -> None:
    """After many times the half-life, what is true now is what counts."""
    table = Calibration(DEPTHS)
    seen = counts(0, 0)
    for rate in (1.0, 0.0):
        for _ in range(40):
            seen = seen + counts(200, 200 * rate)
            table.update(seen)
    assert table.acceptance().max() < 0.1
    assert (table.mean() < 0.02).all()


def test_depths_that_are_seldom_tried_follow_the_one_before() -> None:
    """What they once said of other traffic fades with the first depth's trials, whether they are tried or not."""
    table = Calibration(DEPTHS)
    seen = counts(500, 500)
    table.update(seen)
    assert table.acceptance()[2].min() > 0.9
    for _ in range(40):
        seen[0, 0] += 200
        table.update(seen)
    assert table.acceptance().max() < 0.1
    assert table.acceptance()[2] == pytest.approx(table.acceptance()[0], abs=0.01)


@pytest.mark.parametrize("bias", [-2.0, 0.0, 1.5])
def test_the_truth_is_found_through_the_whole_loop(bias: float) -> None:
    """Confidence, allocation, acceptance, observation and fit in a loop, with most drafts cut off.

    The draft is more or less sure than it is right, by ``bias`` logits; only what was allocated is ever tested.
    """
    rng = torch.Generator().manual_seed(7)
    bs = 64
    table = Calibration(DEPTHS)
    model = AcceptanceModel.create(
        torch.from_numpy(calibration.bin_edges()), torch.from_numpy(table.logits()), bs, "cpu"
    )
    plan = VerifyPlan.create(bs, DEPTHS, DEPTHS, "cpu")
    requests = torch.arange(bs)
    for step in range(400):
        logit = torch.randn(bs, DEPTHS, generator=rng) * 1.5 + 1
        confidence, truth = logit.sigmoid(), (logit + bias).sigmoid()
        allocate_verify(confidence, requests, model, bs + 64, plan)
        success = torch.rand(bs, DEPTHS, generator=rng) < truth
        accepted = 1 + success.int().cumprod(1).sum(1).clamp(max=plan.verify_lens - 1)
        observe_acceptance(confidence, requests, plan.verify_lens, accepted.int(), model)
        model.offsets.zero_()  # all requests are alike
        if step % 32 == 0:
            table.update(model.counts.numpy())
            model.logits.copy_(torch.from_numpy(table.logits()))
    seen = table.trials > 60
    bin_centers = calibration.bin_centers()
    truth_of_bin = 1 / (1 + np.exp(-(np.log(bin_centers / (1 - bin_centers)) + bias)))
    assert seen[0].sum() > 10
    error = (table.acceptance() - truth_of_bin)[seen]
    assert np.abs(error).max() < 0.12
    assert np.abs(error).mean() < 0.04


def test_promises_that_are_not_kept_are_known() -> None:
    """A draft that went wrong may be sure of what follows: no table by depth and confidence can tell, only the outcome.

    The first token is right in half of all drafts, unforeseeably. Then the draft is sure or not, and rightly so; behind
    a wrong token it is always sure.
    """
    rng = torch.Generator().manual_seed(5)
    bs, depths, sure, unsure = 64, 2, 0.9, 0.3
    table = Calibration(depths)
    model = AcceptanceModel.create(
        torch.from_numpy(calibration.bin_edges()), torch.from_numpy(table.logits()), bs, "cpu"
    )
    known = Survivals(depths, [0, depths], table.mean(), table.accepted_ratio())
    plan = VerifyPlan.create(bs, depths, depths, "cpu")
    histogram = plan.histogram.clone()
    requests = torch.arange(bs)
    for _ in range(300):
        first = torch.rand(bs, generator=rng) < 0.5
        confidence = torch.full((bs, depths), 0.5)
        confidence[:, 1] = torch.where(first & (torch.rand(bs, generator=rng) < 0.5), unsure, sure)
        second = first & (torch.rand(bs, generator=rng) < confidence[:, 1])
        allocate_verify(confidence, requests, model, bs * (depths + 1), plan)
        accept_lens = (1 + first.int() + second.int()).int()
        observe_acceptance(confidence, requests, plan.verify_lens, accept_lens, model)
        model.offsets.zero_()
        table.update(model.counts.numpy())
        model.logits.copy_(torch.from_numpy(table.logits()))
        known.set_prior(table.mean(), table.accepted_ratio())
        known.update((plan.histogram - histogram).numpy(), depths)
        histogram = plan.histogram.clone()
    truth = 0.5, 0.5 * (sure + unsure) / 2
    expected = 0.5, 0.5 * (0.5 * sure + 0.25 * (sure + unsure))
    assert table.promised / table.trials[0].sum() == pytest.approx(expected, rel=0.05)
    assert table.accepted_ratio() == pytest.approx(np.array(truth) / expected, rel=0.03)
    assert expected_gain(known, depths)[1, 0] == pytest.approx(sum(truth), rel=0.03)


def test_depths_whose_promises_are_few_keep_them_as_the_one_before() -> None:
    """And none at all: promises are kept."""
    table = Calibration(DEPTHS)
    assert table.accepted_ratio().tolist() == [1] * DEPTHS
    new = counts(1000, 400, 500)
    new[2, 1:] = 0
    new[1, 1:] = 0
    table.update(new)
    assert table.accepted_ratio() == pytest.approx(0.8, abs=0.01)


def test_json() -> None:
    """It is restored as it was; anything else is a ValueError."""
    table = Calibration(DEPTHS)
    table.update(counts(50, 20))
    content = table.to_json()
    restored = Calibration.from_json(content, DEPTHS)
    np.testing.assert_allclose(restored.acceptance(), table.acceptance(), atol=1e-6)
    good = content["trials"]
    damaged: list[object] = [None, [], {}, {"trials": good}, {"trials": good, "successes": "x"}]
    damaged += [{"trials": content["successes"], "successes": good}, {"trials": good, "successes": [[-1.0] * BINS] * 3}]
    damaged += [{"trials": good, "successes": [[float("nan")] * BINS] * 3}]
    for value in damaged:
        with pytest.raises(ValueError, match=r"the calibration"):
            Calibration.from_json(value, DEPTHS)
    with pytest.raises(ValueError, match=r"4 x 32"):
        Calibration.from_json(content, DEPTHS + 1)
