"""How likely a draft token is accepted, by depth and confidence: learnt while serving, from censored counts.

The device counts trials, successes, and what survivals promised (`tessera_kernels.ops.learning.observe_acceptance`);
this fits the table that it looks up (`tessera_kernels.ops.learning.acceptance_model`). Shapes: ``S`` depths, ``BINS``
bins of confidence. Trees have one row for all nodes, by the score of their paths.
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
"""Bins of confidence, equal in its logit: drafts are often sure, and 0.99 is not 0.999."""
_FIRST_EDGE, _LAST_EDGE = -3.5, 6.5  # logits: 0.03 and 0.9985
PRIOR_TRIALS = 20.0
"""Weight of the prior in each bin. For the first depth it says that a draft is right as often as it is sure (EAGLE-2,
arXiv 2406.16858), for each other one that it is right as often as at the depth before; either way shifted by what all
bins of the depth have in common, or a draft that is sure and always wrong would have to be found out bin by bin."""
SHIFT_SPREAD = 2.0
"""Standard deviation, in logits, of how far a depth may be expected to lie from its prior."""
_SHIFT_ROUNDS, _LONGEST_STRIDE, _SHORTEST_STRIDE = 4, 1.5, 1e-8
HALF_LIFE = 2048.0
"""Trials of the first depth after which what was counted before weighs half, at every depth: traffic changes. Deep
drafts are tried seldom; with a half-life of their own they would tell of earlier traffic for long. Of trees, trials of
a node."""
PRIOR_PROMISES = 64.0
"""Weight of the prior of `Calibration.kept`, in tokens: promises are kept, and at each depth as at the one before."""
FIT_INTERVAL = 64
"""Steps between two fits of the table, at least."""
LEAST_DRAFTS = 8
"""Drafts between two fits, at least: where most steps are plain they come in bursts, of which each should count."""
FIRST_FITS = (4, 8, 16, 32)
"""Drafts after which the first fits come: a bad draft costs every step."""
FIRST_GUESS = 0.7
"""Mean conditional acceptance before anything was tried."""
MAX_LOGIT = 7.0
"""Probabilities stay within 0.0009 and 0.9991, so that a product over depths is never 0 and a request's offset can
still move it."""


class Traffic(IntEnum):
    """What a batch asks for; what is known of drafts is known of each kind on its own.

    A target that takes its likeliest token agrees with a draft more often, and more surely, than one that samples.
    """

    GREEDY = 0
    SAMPLED = 1
    """By at least one request."""


Calibrations = tuple["Calibration", "Calibration"]
"""By `Traffic`."""


def edges() -> npt.NDArray[np.float32]:
    """The borders of the bins, float32 ``[BINS - 1]``, ascending."""
    return _sigmoid(np.linspace(_FIRST_EDGE, _LAST_EDGE, BINS - 1)).astype(np.float32)


@cache
def identity() -> Array:
    """The prior, ``[BINS]``, not to be changed: the confidence in the middle of each bin."""
    step = (_LAST_EDGE - _FIRST_EDGE) / (BINS - 2)
    return _sigmoid(_FIRST_EDGE + step * (np.arange(BINS) - 0.5))


class FitTimer:
    """When to fit a table again."""

    def __init__(self) -> None:
        self._drafts = self._drafts_since = self._steps_since = 0

    def stepped(self) -> None:
        """A step begins, with a draft or without."""
        self._steps_since += 1

    def drafted(self) -> bool:
        """A draft was verified and counted: whether a fit is due."""
        self._drafts += 1
        self._drafts_since += 1
        due = self._steps_since >= FIT_INTERVAL and self._drafts_since >= LEAST_DRAFTS
        if due or self._drafts in FIRST_FITS:
            self._drafts_since = self._steps_since = 0
            return True
        return False


class Calibration:
    """Counts that fade, and the table fitted to them.

    Args:
        depths: the most draft tokens of a request.
        trees: they are the nodes of a tree, which share one row.
    """

    def __init__(self, depths: int, *, trees: bool = False) -> None:
        rows = 1 if trees else depths
        self._columns = depths // rows
        self.trials: Array = np.zeros((rows, BINS))
        self.successes: Array = np.zeros((rows, BINS))
        self.promised: Array = np.zeros(rows)
        self._seen: npt.NDArray[np.int32] = np.zeros((3, rows, BINS), np.int32)

    def absorb(self, counts: npt.NDArray[np.int32]) -> int:
        """Take over what the device has counted since the last call, and return how many drafts were accepted.

        Args:
            counts: int32 ``[3, S, BINS]``, a copy of the device's trials, successes and promises. They never go back to
                zero; the difference is right also after they wrapped.
        """
        new = (counts.view(np.uint32) - self._seen.view(np.uint32)).astype(np.float64)
        self._seen = counts.copy()
        kept = 0.5 ** (new[0, 0].sum() / (HALF_LIFE * self._columns))
        self.trials = self.trials * kept + new[0]
        self.successes = self.successes * kept + new[1]
        self.promised = self.promised * kept + PREDICTION_UNIT * new[2].sum(1)
        return int(new[1].sum())

    def acceptance(self) -> Array:
        """The table, ``[S, BINS]``: P(accepted | those before it accepted, confidence in the bin).

        A shifted Beta prior of `PRIOR_TRIALS`, then the closest table (least squares, weighted by trials) that does not
        fall with the confidence.
        """
        found = np.empty_like(self.trials)
        _fit(self.trials, self.successes, identity(), found)
        return found

    def logits(self) -> npt.NDArray[np.float32]:
        """The table as the device takes it: float32 ``[S, BINS]``."""
        p = self.acceptance()
        return np.asarray(np.clip(np.log(p) - np.log1p(-p), -MAX_LOGIT, MAX_LOGIT), np.float32)

    def mean(self) -> Array:
        """Mean conditional acceptance of each depth, ``[S]``; a depth that was seldom tried leans on the one before.

        Of trees: that of all nodes, for each. Their survivals are counted, and not guessed from this, after one step.
        """
        means: list[float] = []
        guess = FIRST_GUESS
        for trials, successes in zip(self.trials.sum(1).tolist(), self.successes.sum(1).tolist(), strict=True):
            guess = (successes + PRIOR_TRIALS * guess) / (trials + PRIOR_TRIALS)
            means += [guess] * self._columns
        return np.array(means)

    def kept(self) -> Array:
        """How much of the tokens that survivals promised was accepted, by depth, ``[S]``.

        A survival multiplies chances as if each confidence told of its own token only, and a request's offset follows
        slowly. Of a trained head's eighth to eleventh token 2 to 25 % more were accepted than promised
        (`docs/design/log/2026-11-25.md`).
        """
        found: list[float] = []
        share = 1.0
        for accepted, promised in zip(self.successes.sum(1).tolist(), self.promised.tolist(), strict=True):
            share = (accepted + PRIOR_PROMISES * share) / (promised + PRIOR_PROMISES)
            found += [share] * self._columns
        return np.array(found)

    def copy(self) -> Calibration:
        """What is known now."""
        return copy(self)  # arrays are replaced, never changed

    def to_json(self) -> dict[str, Any]:
        """What the cache keeps, for a warm start."""
        return {name: getattr(self, name).round(3).tolist() for name in ("trials", "successes", "promised")}

    @classmethod
    def from_json(cls, content: object, depths: int, *, trees: bool = False) -> Calibration:
        """Restore what `to_json` gave.

        Raises:
            ValueError: it is something else, or of other depths or bins.
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
