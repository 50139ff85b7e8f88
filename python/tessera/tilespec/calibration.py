"""The probability that a draft token is accepted, by depth and confidence, fitted while serving.

The device counts trials, successes and the sums of predicted survivals
(`tessera_kernels.ops.learning.observe_acceptance`); this fits the table that it looks up
(`tessera_kernels.ops.learning.acceptance_model`). Counts are censored: only verified tokens are tried. Shapes: ``S``
depths, ``BINS`` bins of confidence. Trees have one row for all nodes, by their path scores.
"""

from __future__ import annotations

import math
from copy import copy
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.tilespec.compiled import compiled
from tessera.tilespec.costs import Array
from tessera_kernels.ops.learning.histogram import PREDICTION_UNIT

BINS = 32
"""Bins of confidence, equally wide in its logit, as 0.99 and 0.999 differ."""
_FIRST_EDGE, _LAST_EDGE = -3.5, 6.5  # logits: 0.03 and 0.9985
PRIOR_TRIALS = 20.0
"""Weight of the prior in each bin. The prior of the first depth is the confidence itself (EAGLE-2, arXiv 2406.16858),
that of each other depth is the table of the depth before. Both are shifted, in logits, by a number for all bins of the
depth: else a draft that is confident and always wrong would have to be found out bin by bin."""
SHIFT_SPREAD = 2.0
"""Prior standard deviation of that shift, in logits."""
_SHIFT_ROUNDS, _LONGEST_STRIDE, _SHORTEST_STRIDE = 4, 1.5, 1e-8
HALF_LIFE = 2048.0
"""Half-life of all counts, in trials of the first depth (of trees: trials of a node), as traffic changes. With a
half-life of their own, deep drafts, which are tried seldom, would describe earlier traffic for long."""
PRIOR_PROMISES = 64.0
"""Weight of the prior of `Calibration.accepted_ratio`, in tokens. The prior is the ratio of the depth before, and 1."""
FIT_INTERVAL = 64
"""Least number of steps between two fits of the table."""
LEAST_DRAFTS = 8
"""Least number of drafts between two fits: between plain steps they come in bursts, and each burst should count."""
FIRST_FITS = (4, 8, 16, 32)
"""Numbers of drafts after which the first fits are due: until then a bad draft model costs time in each step."""
FIRST_GUESS = 0.7
"""Prior mean of the conditional acceptance."""
MAX_LOGIT = 7.0
"""Bound of the table, 0.0009 to 0.9991: products over depths are never 0, and a request's offset can change them."""


class Traffic(IntEnum):
    """Whether a batch is greedy. Each kind has its own calibration: greedy targets accept more drafts."""

    GREEDY = 0
    SAMPLED = 1
    """At least one request is sampled."""


Calibrations = tuple["Calibration", "Calibration"]
"""By `Traffic`."""


def bin_edges() -> npt.NDArray[np.float32]:
    """The edges between the bins, float32 ``[BINS - 1]``, ascending."""
    return _sigmoid(np.linspace(_FIRST_EDGE, _LAST_EDGE, BINS - 1)).astype(np.float32)


@cache
def bin_centers() -> Array:
    """The confidence in the middle of each bin, ``[BINS]``; not to be changed."""
    step = (_LAST_EDGE - _FIRST_EDGE) / (BINS - 2)
    return _sigmoid(_FIRST_EDGE + step * (np.arange(BINS) - 0.5))


class FitTimer:
    """When to fit a table again."""

    def __init__(self) -> None:
        self._drafts = self._drafts_since = self._steps_since = 0

    def on_step(self) -> None:
        """Count the beginning of a step."""
        self._steps_since += 1

    def on_verify(self) -> bool:
        """A draft was verified and counted. Returns whether a fit is due."""
        self._drafts += 1
        self._drafts_since += 1
        due = self._steps_since >= FIT_INTERVAL and self._drafts_since >= LEAST_DRAFTS
        if due or self._drafts in FIRST_FITS:
            self._drafts_since = self._steps_since = 0
            return True
        return False


class Calibration:
    """Counts with a half-life, and the table fitted to them.

    Args:
        depths: S, the greatest number of draft tokens of a request.
        trees: whether these are nodes of a tree, which share one row.

    Attributes:
        trials: verified draft tokens whose predecessors were all accepted, ``[S, BINS]``.
        successes: those of them that were accepted, ``[S, BINS]``.
        promised: the sums of predicted survivals of verified draft tokens, ``[S]``.
    """

    def __init__(self, depths: int, *, trees: bool = False) -> None:
        rows = 1 if trees else depths
        self._columns = depths // rows
        self.trials: Array = np.zeros((rows, BINS))
        self.successes: Array = np.zeros((rows, BINS))
        self.promised: Array = np.zeros(rows)
        self._last_counts: npt.NDArray[np.int32] = np.zeros((3, rows, BINS), np.int32)

    def update(self, counts: npt.NDArray[np.int32]) -> int:
        """Add what the device has counted since the last call, and return the number of accepted draft tokens.

        Args:
            counts: int32 ``[3, S, BINS]``, a copy of the device's totals of trials, successes and survivals. They may
                have overflowed.
        """
        new = (counts.view(np.uint32) - self._last_counts.view(np.uint32)).astype(np.float64)
        self._last_counts = counts.copy()
        decay = 0.5 ** (new[0, 0].sum() / (HALF_LIFE * self._columns))
        self.trials = self.trials * decay + new[0]
        self.successes = self.successes * decay + new[1]
        self.promised = self.promised * decay + PREDICTION_UNIT * new[2].sum(1)
        return int(new[1].sum())

    def acceptance(self) -> Array:
        """The table, ``[S, BINS]``: P(accepted | all tokens before it are accepted, confidence in the bin).

        A posterior with a shifted Beta prior of `PRIOR_TRIALS`, then weighted isotonic regression over the confidence.
        """
        found = np.empty_like(self.trials)
        _fit(self.trials, self.successes, bin_centers(), found)
        return found

    def logits(self) -> npt.NDArray[np.float32]:
        """The logits of the table, float32 ``[S, BINS]``, as the device uses them."""
        p = self.acceptance()
        return np.asarray(np.clip(np.log(p) - np.log1p(-p), -MAX_LOGIT, MAX_LOGIT), np.float32)

    def mean(self) -> Array:
        """Mean conditional acceptance of each depth, ``[S]``. The prior of a depth is the mean of the one before.

        For trees it is the mean of all nodes at each depth.
        """
        means: list[float] = []
        guess = FIRST_GUESS
        for trials, successes in zip(self.trials.sum(1).tolist(), self.successes.sum(1).tolist(), strict=True):
            guess = (successes + PRIOR_TRIALS * guess) / (trials + PRIOR_TRIALS)
            means += [guess] * self._columns
        return np.array(means)

    def accepted_ratio(self) -> Array:
        """Accepted tokens relative to the sum of their predicted survivals, by depth, ``[S]``.

        Survivals multiply probabilities as if confidences were independent, and a request's offset follows slowly. Of a
        trained head's eighth to eleventh token, 2 to 25 % more were accepted than predicted
        (`docs/design/log/2026-11-25.md`).
        """
        found: list[float] = []
        share = 1.0
        for accepted, promised in zip(self.successes.sum(1).tolist(), self.promised.tolist(), strict=True):
            share = (accepted + PRIOR_PROMISES * share) / (promised + PRIOR_PROMISES)
            found += [share] * self._columns
        return np.array(found)

    def copy(self) -> Calibration:
        """A copy, which later updates do not change."""
        return copy(self)  # arrays are replaced, never changed

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON values, for the cached profile."""
        return {name: getattr(self, name).round(3).tolist() for name in ("trials", "successes", "promised")}

    @classmethod
    def from_json(cls, content: object, depths: int, *, trees: bool = False) -> Calibration:
        """Restore what `to_json` gave.

        Raises:
            ValueError: the content is malformed, or of other depths or bins.
        """
        if not isinstance(content, dict):
            raise ValueError("the calibration is not an object")  # noqa: TRY004 - wrong content, not a wrong call
        restored = cls(depths, trees=trees)
        rows = len(restored.trials)
        shapes = {"trials": (rows, BINS), "successes": (rows, BINS), "promised": (rows,)}
        trials, successes, promised = (_counts(content.get(name), name, shape) for name, shape in shapes.items())
        if (successes > trials).any():
            raise ValueError("the calibration has more successes than trials")
        restored.trials, restored.successes, restored.promised = trials, successes, promised
        return restored


def _counts(value: object, name: str, shape: tuple[int, ...]) -> Array:
    try:
        counts = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the calibration's {name} are not numbers") from error
    if counts.shape != shape or not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError(f"the calibration's {name} are not {' x '.join(map(str, shape))} counts")
    return counts


def _sigmoid(logit: npt.NDArray[np.floating[Any]]) -> Array:
    return np.asarray(1 / (1 + np.exp(-logit)), np.float64)


@compiled("float64[::1](float64[::1], float64[::1], float64[::1])")
def _shifted(prior: Array, trials: Array, successes: Array) -> Array:
    """Move the logits of ``[BINS]`` chances by the one number that explains the counts best (Newton's method)."""
    against = (1 - prior) / prior  # not the odds in favour: a chance may have been rounded to 1
    right = successes.sum()
    shift = 0.0
    expected = prior
    for _ in range(_SHIFT_ROUNDS):
        guessed = (trials * expected).sum()
        slope = right - guessed - shift / SHIFT_SPREAD**2
        curvature = guessed - (trials * expected * expected).sum() + 1 / SHIFT_SPREAD**2
        stride = min(max(slope / curvature, -_LONGEST_STRIDE), _LONGEST_STRIDE)
        shift += stride
        expected = 1 / (1 + against * math.exp(-shift))
        if abs(stride) < _SHORTEST_STRIDE:  # the next would be about its square
            break
    return expected


@compiled("void(float64[::1], float64[::1])")
def _isotonic(values: Array, weights: Array) -> None:
    """Weighted isotonic regression, in place: neighbours that fall are pooled until none does."""
    means, masses, ends = np.empty_like(values), np.empty_like(values), np.empty(len(values), np.int64)
    pools = 0
    for place in range(len(values)):
        value, mass = values[place], weights[place]
        while pools and means[pools - 1] > value:
            pools -= 1
            more = masses[pools]
            value = (means[pools] * more + value * mass) / (more + mass)
            mass += more
        means[pools], masses[pools], ends[pools] = value, mass, place + 1
        pools += 1
    begin = 0
    for pool in range(pools):
        values[begin : ends[pool]] = means[pool]
        begin = ends[pool]


@compiled("void(float64[:, ::1], float64[:, ::1], float64[::1], float64[:, ::1])")
def _fit(trials: Array, successes: Array, prior: Array, found: Array) -> None:
    """Write the table of `Calibration.acceptance`; ``prior`` stays as it is."""
    for depth in range(len(trials)):
        weight = trials[depth] + PRIOR_TRIALS
        prior = _shifted(prior, trials[depth], successes[depth])
        for place in range(len(weight)):
            prior[place] = (successes[depth, place] + PRIOR_TRIALS * prior[place]) / weight[place]
            found[depth, place] = prior[place]
        _isotonic(found[depth], weight)
