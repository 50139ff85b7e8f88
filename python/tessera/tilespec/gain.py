"""How many draft tokens a step may expect to have accepted, by how many it verifies.

Shapes: ``S`` depths (of a tree: drafted nodes, the likeliest first), ``BINS`` bins of survival (the probability that a
draft token and all that it continues are accepted), as `tessera_kernels.ops.verify.allocate_verify` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.tilespec.compiled import compiled
from tessera.tilespec.costs import Array, Integers
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS as BINS
from tessera_kernels.ops.learning.histogram import HISTOGRAM_UNIT

Histogram = npt.NDArray[np.int32]

MEMORY_REQUESTS = 8.0
"""News of this many requests replace half of what was known: few requests tell little, but a text becomes repetitive,
or stops to be, from one line to the next."""
FIRST_REQUESTS = 4.0
"""What is assumed at the beginning counts as so many."""
FIRST_YOUNG = 1.0
"""The same of what is assumed of requests that join. Less: with a useless draft each new one would pay for it again."""
YOUNG_REQUESTS = 128.0
"""As `MEMORY_REQUESTS`, of what is expected of requests that join: some dozens of requests, for traffic changes."""
YOUTH = 0.25**0.25
"""How young a batch is after a step, of what it was before it, and 1 where it has just joined: the longer a text, the
better its drafts often are."""
LEAST_YOUTH = YOUTH**16
"""What is less young says nothing of new requests any more."""


def another_batch(joined: int, bs: int) -> bool:
    """Whether a batch of ``bs``, of which so many have just joined, is to be taken for another one."""
    return 2 * joined >= bs > 0


@compiled("int64(int32[:, :, ::1], int64, float64[::1], float64[::1], float64[:, :, ::1])")
def _weigh(histogram: Histogram, drafted: int, units: Array, mean: Array, counted: Array) -> int:
    """Write tokens and survivals of every depth into ``counted``, and return how many requests there were.

    Behind the last drafted depth a token is at the place that its survival would have there.
    """
    requests = 0
    for place in range(BINS):
        requests += histogram[0, 0, place]
    for depth in range(drafted):
        for place in range(BINS):
            counted[0, depth, place] = histogram[0, depth, place]
            counted[1, depth, place] = histogram[1, depth, place] * units[depth]
    left = 1.0
    for depth in range(drafted, counted.shape[1]):
        left *= mean[depth]
        counted[:, depth] = 0
        for place in range(BINS):
            moved = int((place + 0.5) * left)
            counted[0, depth, moved] += counted[0, drafted - 1, place]
            counted[1, depth, moved] += counted[1, drafted - 1, place] * left
    return requests


@compiled("void(float64[:, :, ::1], float64, float64[:, :, ::1], float64)")
def _blend(rates: Array, weight: float, others: Array, others_weight: float) -> None:
    for what, depth, place in np.ndindex(rates.shape):
        rates[what, depth, place] = weight * rates[what, depth, place] + others_weight * others[what, depth, place]


@compiled("void(float64[:, :, ::1], int64[::1], float64[:, ::1], float64[:, ::1])")
def _read(rates: Array, steps: Integers, drafts: Array, gain: Array) -> None:
    """Read the curve of each row: the most likely draft tokens come first, whatever their depth."""
    found = np.zeros((2, BINS))
    tokens, accepted = np.zeros(BINS + 1), np.zeros(BINS + 1)
    drafted = 0
    for row in range(len(steps)):
        for depth in range(drafted, steps[row]):
            for place in range(BINS):
                found[0, place] += rates[0, depth, place]
                found[1, place] += rates[1, depth, place]
        drafted = steps[row]
        for place in range(BINS):
            tokens[place + 1] = tokens[place] + found[0, BINS - 1 - place]
            accepted[place + 1] = accepted[place] + found[1, BINS - 1 - place]
        gain[row] = np.interp(drafts[row], tokens, accepted)


class Stamp(NamedTuple):
    """Of which batch a histogram is."""

    young: float
    """How new its requests were, 0 to 1."""
    batch: int
    """Number of the batch: another one begins where half of it or more has just joined."""


@dataclass(slots=True)
class _Mean:
    """The histogram of one request, over requests of which older ones fade."""

    rates: Array
    known: float
    """What was counted before weighs as much as so many requests."""
    most: float
    """What ``known`` is at most."""

    def add(self, counted: Array, requests: int, weight: float = 1.0) -> None:
        """Take in the histogram of so many requests, as if they were ``weight`` times as many."""
        total = self.known + weight * requests
        _blend(self.rates, self.known / total, counted, weight / total)
        self.known = min(total, self.most)


class Survivals:
    """The survivals of recent steps, per request, and the gain curves that follow from them.

    Args:
        depths: S.
        steps: the numbers of draft steps to make curves for, ascending.
        mean: ``[S]``, mean conditional acceptance by depth: all that is known until a histogram comes.
        kept: ``[S]``, the share of promised tokens that is accepted, by depth.

    Raises:
        ValueError: more steps than depths, not ascending, or what `assume` refuses.
    """

    def __init__(self, depths: int, steps: Sequence[int], mean: Array, kept: Array) -> None:
        if list(steps) != sorted(steps) or steps[-1] > depths:
            raise ValueError(f"steps: got {list(steps)}; allowed: ascending, at most {depths}, the depths")
        self.steps = np.array(steps, np.int64)
        self._counted = np.empty((2, depths, BINS))
        rates = np.zeros((2, depths, BINS))
        rates[:, :, -1] = mean.cumprod()
        rates[0, :, -1] = 1  # each request has one draft token at each depth
        rates = self._in_their_bins(rates)
        self._recent = _Mean(rates, FIRST_REQUESTS, MEMORY_REQUESTS)
        self._at_first = _Mean(rates.copy(), FIRST_YOUNG, YOUNG_REQUESTS)
        self._stamp = Stamp(1.0, 0)
        self.assume(mean, kept)

    def assume(self, mean: Array, kept: Array) -> None:
        """Take over another mean conditional acceptance, ``[S]``, for depths that are not drafted, and share kept.

        Raises:
            ValueError: a mean is no probability, or there are more or fewer than depths.
        """
        if not mean.shape == kept.shape == self._counted.shape[1:2]:
            raise ValueError(f"got {mean.shape} means and {kept.shape} shares kept of {self._counted.shape[1]} depths")
        if not ((mean >= 0) & (mean <= 1)).all():
            raise ValueError(f"mean acceptance: got {mean.tolist()}; allowed: 0 to 1")
        self._units = HISTOGRAM_UNIT * kept
        self._recent.known = max(self._recent.known / 2, FIRST_REQUESTS)  # by a table that is gone
        self._mean = mean

    def stamp(self, steps: int) -> Stamp:
        """Of what the last ``steps`` steps have counted, for `update`: it arrives later, maybe in another batch."""
        stamp = self._stamp
        self._stamp = stamp._replace(young=stamp.young * YOUTH**steps)
        return stamp

    def is_of_now(self, stamp: Stamp) -> bool:
        """Whether what has this stamp is of the batch that runs."""
        return stamp.batch == self._stamp.batch

    def update(self, histogram: Histogram, drafted: int, young: float = 0.0, *, now: bool = True) -> None:
        """Take in the histogram of some steps.

        Args:
            histogram: int32 ``[2, S, BINS]``, what was added to that of
                `tessera_kernels.ops.verify.allocate_verify.VerifyPlan`. Requests that had no draft are not in it; one
                without any says nothing.
            drafted: their draft steps, at least 1. Deeper ones are extrapolated from the last that was drafted.
            young: of its `stamp`.
            now: it `is_of_now`. The last steps of a wave say nothing of the next one.

        Raises:
            ValueError: it is of other depths, or more were drafted than there are.
        """
        if histogram.shape != self._counted.shape or not 1 <= drafted <= histogram.shape[1]:
            raise ValueError(f"{drafted} drafted: got a histogram of {histogram.shape}, for {self._counted.shape}")
        requests = _weigh(histogram, drafted, self._units, self._mean, self._counted)
        if requests == 0:
            return
        if now:
            self._recent.add(self._counted, requests)
        if young >= LEAST_YOUTH:
            self._at_first.add(self._counted, requests, young)

    def renew(self, joined: int, bs: int) -> None:
        """``joined`` of a batch of ``bs`` are new: of them is known what requests are like when they begin.

        A wave of new ones after one straggler, whose drafts all failed, was decoded without drafts to its end; and one
        after many whose texts had become repetitive with too many, until it was looked at again.
        """
        share = min(joined / bs, 1.0)
        recent = self._recent
        recent.known += share * (min(FIRST_REQUESTS * joined, MEMORY_REQUESTS) - recent.known)
        _blend(recent.rates, 1 - share, self._at_first.rates, share)
        young, batch = self._stamp
        self._stamp = Stamp(young + share * (1.0 - young), batch + another_batch(joined, bs))

    def read(self, drafts: Array, gain: Array) -> None:
        """Expected accepted draft tokens for each request.

        Args:
            drafts: ``[steps, any]``: draft tokens verified per request, in a row for each number of draft steps.
            gain: the same shape, written.

        Raises:
            ValueError: other shapes.
        """
        if drafts.shape != gain.shape or len(drafts) != len(self.steps):
            raise ValueError(f"got {drafts.shape} to read into {gain.shape}, of {len(self.steps)} numbers of steps")
        _read(self._recent.rates, self.steps, drafts, gain)

    @staticmethod
    def _in_their_bins(rates: Array) -> Array:
        """Move the last bin's items to the bins that their mean survival belongs to."""
        moved = np.zeros_like(rates)
        place = np.minimum((rates[1, :, -1] * BINS).astype(np.int64), BINS - 1)
        moved[:, np.arange(rates.shape[1]), place] = rates[:, :, -1]
        return moved
