"""The cost of a step, measured at start and corrected while serving.

A step with ``bs`` requests, ``s`` draft steps and a verification of ``m`` tokens over ``KV`` cached tokens takes::

    draft[s](bs) + verify + extend[s + 1](bs) + host
    verify = uniform[s + 1](bs)     m = bs * (s + 1), graphs by batch size
           = tiers(m)               ragged, graphs by tokens

with short contexts, and ``kappa[s] * KV`` more with long ones: the target reads its cache once, and the draft model its
own in each of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SCHEMA = 3
MIN_WEIGHT = 0.02
"""Least weight of a measurement in the correction of its kind of step; the first measurements weigh more."""
COMMON_WEIGHT = 0.1
"""Weight of a measurement in the correction that all kinds share."""
KNOWN_AFTER = 4
"""Measurements after which a kind's time counts as known."""
OUTLIER_LIMIT = 0.1
"""Limit of a measurement's deviation from the expectation: one step in a hundred takes twice as long for other reasons,
such as garbage collection on the host."""
INITIAL_OUTLIER_LIMIT = 0.25
"""The same for the first measurements."""
UNDISTURBED_SHARE, UNDISTURBED_WEIGHT = 0.6, 1 / 256
"""Share of undisturbed steps from which on disturbed steps count little, and the weight of a step in this share."""
DISTURBED_WEIGHT = 0.1
"""Weight of a disturbed step then. It does not count for `KNOWN_AFTER`."""
MEDIAN_INTERVAL = 16
"""Measurements between two updates of the kinds that were never measured, to the median of the others."""


@dataclass(frozen=True)
class Curve:
    """Seconds by size, interpolated between measured sizes.

    It need not ascend: on an H200 a verification of 448 tokens took 14.8 ms, and one of 512 tokens 12.0 ms. With a
    running maximum all greater sizes would look slow, and not only the one with the slow kernel.

    Attributes:
        sizes: ascending.
        seconds: one for each size.
    """

    sizes: Sequence[int]
    seconds: Sequence[float]

    def __post_init__(self) -> None:
        sizes, seconds = np.array(self.sizes, np.float64), np.array(self.seconds, np.float64)
        if not len(sizes) or sizes.shape != seconds.shape or (np.diff(sizes) <= 0).any() or sizes[0] < 1:
            raise ValueError("sizes must ascend from 1 or more, with one time for each")
        if not np.isfinite(seconds).all() or (seconds < 0).any():
            raise ValueError("times must be finite and not negative")
        object.__setattr__(self, "seconds", seconds.tolist())
        object.__setattr__(self, "sizes", [int(size) for size in self.sizes])

    def at(self, size: npt.ArrayLike) -> Array:
        """Seconds at any size: linear between measured sizes, constant below, and with the last slope (>= 0) beyond."""
        wanted = np.asarray(size, np.float64)
        inside = np.interp(wanted, self.sizes, self.seconds)
        if len(self.sizes) == 1:  # one point has no slope: in proportion
            slope = self.seconds[0] / self.sizes[0]
        else:
            slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return np.asarray(inside + max(slope, 0.0) * np.maximum(wanted - self.sizes[-1], 0))


@dataclass(frozen=True)
class CostTable:
    """The cost profile of a server.

    Attributes:
        tiers: ragged verification by tokens, at the captured graphs' sizes, short context.
        uniform: verification by batch size, for each width (1 is plain decoding).
        draft: drafting by batch size, for each number of steps from 1.
        extend: draft-extend by batch size, for each width.
        kv_seconds: seconds for each cached token, for each number of draft steps from 0 (kappa).
        host_seconds: what the host adds to a step (not hidden by the device).
        batch_sizes: captured batch sizes, ascending: a batch runs as the next one of them.
    """

    tiers: Curve | None
    uniform: Mapping[int, Curve]
    draft: Mapping[int, Curve]
    extend: Mapping[int, Curve]
    kv_seconds: Mapping[int, float]
    host_seconds: float
    batch_sizes: Sequence[int]

    def __post_init__(self) -> None:
        for steps in self.steps:
            if steps and (steps not in self.draft or steps + 1 not in self.extend):
                raise ValueError(f"width {steps + 1} was measured for verification but not for drafting")
        if 1 not in self.uniform:
            raise ValueError("plain decoding (width 1) was not measured")
        if sorted(self.kv_seconds) != self.steps:
            raise ValueError("cached tokens were not measured for each number of draft steps")
        if not all(0 <= seconds < np.inf for seconds in (*self.kv_seconds.values(), self.host_seconds)):
            raise ValueError("times must be finite and not negative")
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)) or not self.batch_sizes or self.batch_sizes[0] < 1:
            raise ValueError("batch sizes must ascend from 1 or more")

    @property
    def steps(self) -> list[int]:
        """The numbers of draft steps to choose from, 0 first."""
        return sorted(width - 1 for width in self.uniform)

    def captured_size(self, bs: int) -> int:
        """The batch size after padding to a captured size; greater batches are not padded."""
        place = int(np.searchsorted(self.batch_sizes, bs))
        return self.batch_sizes[place] if place < len(self.batch_sizes) else bs

    def around_verify(self, bs: int) -> Array:
        """Seconds of draft, draft-extend and host for each of `steps`, ``[steps]``."""
        size = self.captured_size(bs)
        seconds = [self.host_seconds] * len(self.steps)
        for i, steps in enumerate(self.steps):
            if steps:
                seconds[i] += float(self.draft[steps].at(size))
            if steps + 1 in self.extend:
                seconds[i] += float(self.extend[steps + 1].at(size))
        return np.array(seconds)

    def verify_uniform(self, bs: int) -> Array:
        """Seconds of verifying all draft tokens for each of `steps`, without `kv_seconds`, ``[steps]``."""
        size = self.captured_size(bs)
        return np.array([float(self.uniform[steps + 1].at(size)) for steps in self.steps])

    def verify_ragged(self) -> Array:
        """Seconds of a verification in each tier, without `kv_seconds`, ``[tiers]``; empty without ragged graphs."""
        return np.array([] if self.tiers is None else self.tiers.seconds, np.float64)

    def to_json(self) -> dict[str, Any]:
        """The table as JSON values, for the cache and for traces."""
        return {"schema": SCHEMA, **msgspec.to_builtins(self, str_keys=True)}

    @classmethod
    def from_json(cls, content: object) -> CostTable:
        """Restore what `to_json` gave.

        Raises:
            ValueError: the content is malformed, or of another schema.
        """
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"the cost table is not of schema {SCHEMA}")
        try:
            return msgspec.convert(content, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"the cost table is damaged: {error}") from error


class Correction:
    """Ratios of measured to profiled times: a common one, and one for each kind of step.

    Clocks, or other work on the host, slow all kinds down. Only kinds that run would show it, and the policy would
    prefer those that ran when it was faster: hence the common ratio, which follows quickly. A kind's own (a slow
    kernel, expert routing) follows slowly. A kind that was never measured has the median of the others.

    When requests come or go, the device waits for the host, the longer the shorter the step is. Such steps are
    "disturbed". They count little, unless most steps are: else kinds that only run in disturbed steps would look slow.

    Args:
        kinds: the number of kinds of steps.

    Attributes:
        own: the ratio of each kind; not to be changed.
        common: the common ratio.
        measured: measurements of each kind, without disturbed ones that count little.
    """

    def __init__(self, kinds: int) -> None:
        self.own: Array = np.ones(kinds)
        self.common = 1.0
        self.measured = np.zeros(kinds, np.int64)
        self._undisturbed = 0.0
        self._observed = 0

    def factor(self, kind: int) -> float:
        """The factor for the profiled seconds of a kind."""
        return float(self.own[kind]) * self.common

    def observe(self, kind: int, profiled: float, measured: float, *, disturbed: bool = False) -> None:
        """Update the ratios with a measurement.

        Args:
            kind: the step's kind.
            profiled: uncorrected seconds by the profile.
            measured: seconds that the step took; values that are no time are ignored.
            disturbed: whether requests came or went directly before.
        """
        if not (profiled > 0 and 0 < measured < np.inf):
            return
        self._undisturbed += UNDISTURBED_WEIGHT * ((not disturbed) - self._undisturbed)
        little = disturbed and self._undisturbed > UNDISTURBED_SHARE
        known, times = self.factor(kind), int(self.measured[kind])
        most = 1 + (OUTLIER_LIMIT if times >= KNOWN_AFTER else INITIAL_OUTLIER_LIMIT)
        ratio = min(max(measured / profiled, known / most), known * most)
        weight, rate = (DISTURBED_WEIGHT, MIN_WEIGHT) if little else (1.0, max(MIN_WEIGHT, 1 / (times + 2)))
        if times >= KNOWN_AFTER:
            self.common *= 1 + weight * COMMON_WEIGHT * (ratio / known - 1)
        self.own[kind] += weight * rate * (ratio / self.common - self.own[kind])
        self.measured[kind] += not little
        self._observed += 1
        if self._observed % MEDIAN_INTERVAL == 0:
            ran = self.measured > 0
            if ran.any():
                self.own[~ran] = median(self.own[ran].tolist())
