"""How many draft tokens a step may expect to have accepted, by how many it verifies.

Shapes: ``S`` depths (of a tree: drafted nodes, the likeliest first), ``BINS`` bins of survival (the probability that a
draft token and all that it continues are accepted), as `tessera_kernels.allocate_verify` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera_kernels.histogram import HISTOGRAM_BINS as BINS
from tessera_kernels.histogram import HISTOGRAM_UNIT

Array = npt.NDArray[np.float64]

MEMORY_REQUESTS = 8.0
"""News of this many requests replace half of what was known: few requests tell little, but a text becomes repetitive,
or stops to be, from one line to the next."""
FIRST_REQUESTS = 4.0
"""What is assumed at the beginning counts as so many."""
FIRST_YOUNG = 1.0
"""The same of what is assumed of requests that join. Less: with a useless draft each new one would pay for it again."""
YOUNG_REQUESTS = 2048.0
"""As `MEMORY_REQUESTS`, of what is expected of requests that join: it outlasts several waves of them."""
YOUTH = 0.25
"""How young a batch that has just joined is at the next look. The longer a text, the better its drafts often are."""
LEAST_YOUTH = YOUTH**4
"""A batch that is less young says nothing of new requests any more."""
_CENTERS = (np.arange(BINS) + 0.5) / BINS


@dataclass(slots=True)
class _Mean:
    """The histogram of one request, over requests of which older ones fade."""

    rates: Array
    known: float
    """What was counted before weighs as much as so many requests."""
    most: float
    """What ``known`` is at most."""

    def add(self, counted: Array, requests: float) -> None:
        """Take in the histogram of so many requests."""
        total = self.known + requests
        self.rates *= self.known / total
        self.rates += counted / total
        self.known = min(total, self.most)


class Survivals:
    """The survivals of recent steps, per request, and the gain curves that follow from them.

    Args:
        depths: S.
        steps: the numbers of draft steps to make curves for.
        mean: ``[S]``, mean conditional acceptance by depth: all that is known until a histogram comes.
        kept: ``[S]``, the share of promised tokens that is accepted, by depth.
    """

    def __init__(self, depths: int, steps: Sequence[int], mean: Array, kept: Array) -> None:
        self._within = (np.arange(depths) < np.array(steps)[:, None]).astype(np.float64)  # [steps, S]
        # One call interpolates in the curves of all steps: each has its own stretch of the axis.
        self.stretch: Array = np.arange(len(steps), dtype=np.float64) * (depths + 1)
        self._stacked = np.zeros((2, len(steps), BINS + 1))  # what each curve begins with comes behind its bins
        self._stacked[0, :, -1] = self.stretch
        self._curves = np.empty_like(self._stacked)
        self._counted = np.zeros((2, depths, BINS))
        self._units = np.ones((2, depths, 1))
        rates = np.zeros((2, depths, BINS))
        rates[:, :, -1] = mean.cumprod()
        rates[0, :, -1] = 1  # each request has one draft token at each depth
        rates = self._in_their_bins(rates)
        self._recent = _Mean(rates, FIRST_REQUESTS, MEMORY_REQUESTS)
        self._at_first = _Mean(rates.copy(), FIRST_YOUNG, YOUNG_REQUESTS)
        self._young = 1.0
        self._stale = True
        self.assume(mean, kept)

    def assume(self, mean: Array, kept: Array) -> None:
        """Take over another mean conditional acceptance, ``[S]``, for depths that are not drafted, and share kept."""
        self._units[1, :, 0] = HISTOGRAM_UNIT * kept
        self._recent.known = max(self._recent.known / 2, FIRST_REQUESTS)  # by a table that is gone
        self._mean = mean
        self._deeper: dict[int, tuple[npt.NDArray[np.int64], Array]] = {}

    def update(self, histogram: npt.NDArray[np.int32], drafted: int) -> None:
        """Take in the histogram of some steps.

        Args:
            histogram: int32 ``[2, S, BINS]``, what was added to that of `tessera_kernels.allocate_verify.VerifyPlan`.
                Requests that had no draft are not in it; one without any says nothing.
            drafted: their draft steps, at least 1. Deeper ones are extrapolated from the last that was drafted.
        """
        requests = int(histogram[0, 0].sum())
        if requests == 0:
            return
        counted = np.multiply(histogram, self._units, out=self._counted)
        if drafted < counted.shape[1]:
            places, lost = self._deeper.get(drafted) or self._prepare(drafted)
            items = counted[:, drafted - 1, None] * lost
            deeper = np.bincount(places, items.ravel(), items.size)
            counted[:, drafted:] = deeper.reshape(items.shape)
        self._recent.add(counted, requests)
        if self._young >= LEAST_YOUTH:
            counted *= self._young
            self._at_first.add(counted, requests * self._young)
            self._young *= YOUTH
        self._stale = True

    def renew(self, joined: int, bs: int) -> None:
        """``joined`` of a batch of ``bs`` are new: of them is known what requests are like when they begin.

        A wave of new ones after one straggler, whose drafts all failed, was decoded without drafts to its end; and one
        after many whose texts had become repetitive with too many, until it was looked at again.
        """
        share = min(joined / bs, 1.0)
        recent = self._recent
        recent.known += share * (min(FIRST_REQUESTS * joined, MEMORY_REQUESTS) - recent.known)
        recent.rates += share * (self._at_first.rates - recent.rates)
        self._young += share * (1.0 - self._young)
        self._stale = True

    def gain(self, drafts: Array) -> Array:
        """Expected accepted draft tokens for each request.

        Args:
            drafts: for each entry the draft tokens verified per request, plus the `stretch` of its steps.
        """
        if self._stale:
            self._accumulate()
        return np.asarray(np.interp(drafts, self._curves[0].ravel(), self._curves[1].ravel()))

    def _prepare(self, drafted: int) -> tuple[npt.NDArray[np.int64], Array]:
        """Where items of the last drafted depth go at deeper ones, and what is left of their survivals.

        Places are flat, in ``[2, S - drafted, BINS]``; what is left is ``[2, S - drafted, 1]``: of their number, all.
        """
        shrink = self._mean[drafted:].cumprod()[:, None]
        rows = np.arange(2 * len(shrink)).reshape(2, -1, 1) * BINS
        places = rows + (_CENTERS * shrink * BINS).astype(np.int64)
        self._deeper[drafted] = places.ravel(), np.stack([np.ones_like(shrink), shrink])
        return self._deeper[drafted]

    @staticmethod
    def _in_their_bins(rates: Array) -> Array:
        """Move the last bin's items to the bins that their mean survival belongs to."""
        moved = np.zeros_like(rates)
        place = np.minimum((rates[1, :, -1] * BINS).astype(np.int64), BINS - 1)
        moved[:, np.arange(rates.shape[1]), place] = rates[:, :, -1]
        return moved

    def _accumulate(self) -> None:
        """From bins to curves: the most likely draft tokens come first, whatever their depth."""
        np.matmul(self._within, self._recent.rates, out=self._stacked[:, :, :-1])
        np.add.accumulate(self._stacked[:, :, ::-1], axis=2, out=self._curves)
        self._stale = False
