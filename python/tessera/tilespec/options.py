"""The options of a step for each batch size, with what does not change: tokens, profiled seconds, kinds."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tessera.tilespec.costs import Array, CostTable, Integers


class Estimates(NamedTuple):
    """Estimates of all options ``[steps, 1 + tiers]``; `tessera.tilespec.estimates.estimate` overwrites them."""

    profiled: Array
    """Seconds by the profile."""
    seconds: Array
    """Seconds expected, corrected."""
    gain: Array
    """Expected accepted draft tokens of the batch."""
    goodput: Array
    """Expected tokens in a second; 0 where there is no such step."""


@dataclass(frozen=True)
class Options:
    """The options of one batch size, ``[steps, 1 + tiers]``: column 0 is the uniform step."""

    tiers: Integers
    tokens: Integers
    seconds: Array
    kinds: Integers
    drafts: Array
    """Verified draft tokens for each request."""
    possible: Array
    """1 if there is a graph for it, else 0."""
    estimates: Estimates
    """Allocated once: a search would spend as much time on fresh memory as on all its values."""

    def column(self, row: int, tier: int | None) -> int | None:
        """The column of a tier (None is uniform) in a row; None if the row has no such option."""
        if tier is None:
            return 0
        place = int(np.searchsorted(self.tiers, tier))
        there = place < len(self.tiers) and self.tiers[place] == tier and self.possible[row, place + 1]
        return place + 1 if there else None


class OptionTable:
    """The options of each batch size, created on first use.

    Args:
        costs: the cost profile.

    Attributes:
        kinds: how many kinds of steps there are, over all batch sizes.
    """

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._tiers = np.array(costs.tiers.sizes if costs.tiers else [], np.int64)
        self._uniform_kinds = len(costs.steps) * (len(costs.batch_sizes) + 1)
        self.kinds: int = self._uniform_kinds + len(self._tiers)
        self._of: dict[int, Options] = {}

    def of(self, bs: int) -> Options:
        """The options of ``bs`` requests."""
        return self._of.get(bs) or self._prepare(bs)

    def _prepare(self, bs: int) -> Options:
        costs = self._costs
        steps = np.array(costs.steps)
        full = bs * (steps + 1)
        # Beyond the captured batch sizes there are no graphs, and a ragged step without one waits for the device.
        first = len(self._tiers) if bs > costs.batch_sizes[-1] else int(np.searchsorted(self._tiers, bs))
        tiers = self._tiers[first:]  # also those greater than everything there is: one may be cheaper
        tokens = np.minimum(np.concatenate([[full[-1]], tiers])[None, :], full[:, None])
        around = costs.around_verify(bs)[:, None]
        uniform = costs.verify_uniform(bs)[:, None]
        ragged = np.broadcast_to(costs.verify_ragged()[first:], (len(steps), len(tiers)))
        batch = int(np.searchsorted(costs.batch_sizes, bs))
        room = bs < costs.batch_sizes[-1]  # what a size has beyond all tokens goes to a request of padding
        uniform_kinds = np.arange(len(steps)) * (len(costs.batch_sizes) + 1) + batch
        ragged_kinds = self._uniform_kinds + np.arange(first, first + len(tiers))
        options = Options(
            tiers,
            tokens,
            np.ascontiguousarray(around + np.hstack([uniform, ragged])),
            np.ascontiguousarray(np.hstack([uniform_kinds[:, None], np.broadcast_to(ragged_kinds, ragged.shape)])),
            np.ascontiguousarray((tokens - bs) / bs),
            np.hstack([np.ones_like(uniform), (steps[:, None] > 0) & (room | (tiers <= full[:, None]))]),
            Estimates(*np.empty((4, *tokens.shape))),
        )
        self._of[bs] = options
        return options
