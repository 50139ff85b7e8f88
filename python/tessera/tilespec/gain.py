"""The expected number of accepted draft tokens of a step, as a function of the number of verified ones.

The survival of a draft token is the probability that it and all tokens before it are accepted. Shapes: ``S`` depths (of
a tree: drafted nodes, the likeliest first), ``BINS`` bins of survival, as
`tessera_kernels.ops.verify.allocate_verify` counts them.
"""

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
"""Half-life of the statistics, in requests and steps. Few requests say little, but a text becomes repetitive, or stops
being so, from one line to the next."""
PRIOR_REQUESTS = 4.0
"""Weight of the prior, in requests."""
NEW_REQUEST_PRIOR = 1.0
"""Weight of the prior for new requests. It is less: with a useless draft model each new request would pay for it."""
NEW_REQUEST_MEMORY = 128.0
"""As `MEMORY_REQUESTS`, for the statistics of new requests: some dozens of requests, as traffic changes."""
FRESHNESS_DECAY = 0.25**0.25
"""Factor of a batch's freshness for each step; it is 1 when all requests are new. Drafts are often better the longer a
text is."""
MIN_FRESHNESS = FRESHNESS_DECAY**16
"""Counts of less fresh batches say nothing of new requests."""


def is_new_batch(new: int, bs: int) -> bool:
    """Whether a batch of ``bs`` requests, ``new`` of which are new, counts as another batch."""
    return 2 * new >= bs > 0


@compiled("int64(int32[:, :, ::1], int64, float64[::1], float64[::1], float64[:, :, ::1])")
def _accumulate(histogram: Histogram, drafted: int, units: Array, mean: Array, counted: Array) -> int:
    """Write the tokens and survivals of each depth into ``counted``, and return the number of requests.

    Depths that were not drafted are extrapolated by the mean acceptance.
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
    """Write the gain of each row: the most likely draft tokens are verified first, whatever their depth."""
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


class BatchStamp(NamedTuple):
    """The batch that a histogram was counted in."""

    freshness: float
    """How new its requests were: 1 if all were new, and less with each step."""
    batch: int
    """The batch's number, which changes when half of its requests or more are new."""


@dataclass(slots=True)
class _RunningMean:
    """The mean histogram of a request, with exponentially decreasing weights."""

    rates: Array
    weight: float
    """Weight of ``rates``, in requests."""
    max_weight: float

    def add(self, counted: Array, requests: int, scale: float = 1.0) -> None:
        """Add the histogram of ``requests`` requests, with ``scale`` times their weight."""
        total = self.weight + scale * requests
        _blend(self.rates, self.weight / total, counted, scale / total)
        self.weight = min(total, self.max_weight)


class Survivals:
    """The survivals of recent steps, per request, and the gain curves that follow from them.

    Args:
        depths: S.
        steps: the numbers of draft steps to choose from, ascending.
        mean: ``[S]``, mean conditional acceptance by depth, used until there is a histogram.
        accepted_ratio: ``[S]``, accepted tokens relative to the sum of their survivals, by depth.

    Raises:
        ValueError: more steps than depths, not ascending, or what `set_prior` refuses.
    """

    def __init__(self, depths: int, steps: Sequence[int], mean: Array, accepted_ratio: Array) -> None:
        if list(steps) != sorted(steps) or steps[-1] > depths:
            raise ValueError(f"steps: got {list(steps)}; allowed: ascending, at most {depths}, the depths")
        self.steps = np.array(steps, np.int64)
        self._counted = np.empty((2, depths, BINS))
        rates = np.zeros((2, depths, BINS))
        rates[:, :, -1] = mean.cumprod()
        rates[0, :, -1] = 1  # each request has one draft token at each depth
        rates = self._rebinned(rates)
        self._recent = _RunningMean(rates, PRIOR_REQUESTS, MEMORY_REQUESTS)
        self._of_new_requests = _RunningMean(rates.copy(), NEW_REQUEST_PRIOR, NEW_REQUEST_MEMORY)
        self._stamp = BatchStamp(1.0, 0)
        self.set_prior(mean, accepted_ratio)

    def set_prior(self, mean: Array, accepted_ratio: Array) -> None:
        """Replace the mean conditional acceptance, used for depths that are not drafted, and the accepted ratio.

        Args:
            mean: ``[S]``.
            accepted_ratio: ``[S]``.

        Raises:
            ValueError: a mean is no probability, or an array has another shape.
        """
        depths = self._counted.shape[1]
        if not mean.shape == accepted_ratio.shape == (depths,):
            raise ValueError(f"got {mean.shape} means and {accepted_ratio.shape} ratios of {depths} depths")
        if not ((mean >= 0) & (mean <= 1)).all():
            raise ValueError(f"mean acceptance: got {mean.tolist()}; allowed: 0 to 1")
        self._units = HISTOGRAM_UNIT * accepted_ratio
        self._recent.weight = max(self._recent.weight / 2, PRIOR_REQUESTS)  # it was counted with the old table
        self._mean = mean

    def stamp(self, steps: int) -> BatchStamp:
        """The stamp of the counts of the last ``steps`` steps, which arrive later, possibly in another batch."""
        stamp = self._stamp
        self._stamp = stamp._replace(freshness=stamp.freshness * FRESHNESS_DECAY**steps)
        return stamp

    def is_current(self, stamp: BatchStamp) -> bool:
        """Whether counts with this stamp are of the batch that runs."""
        return stamp.batch == self._stamp.batch

    def update(self, histogram: Histogram, drafted: int, freshness: float = 0.0, *, current: bool = True) -> None:
        """Add the histogram of some steps. An empty one, of steps without drafts, changes nothing.

        Args:
            histogram: int32 ``[2, S, BINS]``, the increments of the histogram of
                `tessera_kernels.ops.verify.allocate_verify.VerifyPlan`.
            drafted: the steps' number of drafted tokens, at least 1. Deeper ones are extrapolated.
            freshness: the freshness of its `stamp`.
            current: whether its stamp `is_current`. The last steps of a batch say nothing of the next batch.

        Raises:
            ValueError: the shape is another, or ``drafted`` is more than S.
        """
        if histogram.shape != self._counted.shape or not 1 <= drafted <= histogram.shape[1]:
            raise ValueError(f"{drafted} drafted: got a histogram of {histogram.shape}, for {self._counted.shape}")
        requests = _accumulate(histogram, drafted, self._units, self._mean, self._counted)
        if requests == 0:
            return
        if current:
            self._recent.add(self._counted, requests)
        if freshness >= MIN_FRESHNESS:
            self._of_new_requests.add(self._counted, requests, freshness)

    def add_new_requests(self, new: int, bs: int) -> None:
        """Blend in the statistics of new requests, for ``new`` requests of a batch of ``bs``.

        Without it, a batch after one last request whose drafts all failed was decoded without drafts to its end.
        """
        share = min(new / bs, 1.0)
        recent = self._recent
        recent.weight += share * (min(PRIOR_REQUESTS * new, MEMORY_REQUESTS) - recent.weight)
        _blend(recent.rates, 1 - share, self._of_new_requests.rates, share)
        freshness, batch = self._stamp
        self._stamp = BatchStamp(freshness + share * (1.0 - freshness), batch + is_new_batch(new, bs))

    def read(self, drafts: Array, gain: Array) -> None:
        """Compute the expected number of accepted draft tokens of a request.

        Args:
            drafts: ``[steps, n]``, verified draft tokens of a request, a row for each number of draft steps.
            gain: the result, of the same shape.

        Raises:
            ValueError: the shapes differ, or there is not one row for each number of draft steps.
        """
        if drafts.shape != gain.shape or len(drafts) != len(self.steps):
            raise ValueError(f"got {drafts.shape} to read into {gain.shape}, of {len(self.steps)} numbers of steps")
        _read(self._recent.rates, self.steps, drafts, gain)

    @staticmethod
    def _rebinned(rates: Array) -> Array:
        """Move the items of the last bin to the bins of their mean survival."""
        moved = np.zeros_like(rates)
        place = np.minimum((rates[1, :, -1] * BINS).astype(np.int64), BINS - 1)
        moved[:, np.arange(rates.shape[1]), place] = rates[:, :, -1]
        return moved
