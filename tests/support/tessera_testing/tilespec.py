"""Cost tables and survivals of known content, for tests of TileSpec's policy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.gain import Survivals
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT

Floats = npt.NDArray[np.float64]
_TIMES, _OFTEN = 5, 1000
"""So many batches of one kind, and nothing else is known any more."""


def histogram_of(survival: Floats, depths: int) -> npt.NDArray[np.int32]:
    """As the kernel counts them. Survivals in the middle of bins are counted without loss."""
    counts = np.zeros((2, depths, HISTOGRAM_BINS))
    for line in survival:
        for depth, p in enumerate(line):
            cell = min(int(p * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)
            counts[:, depth, cell] += 1, p / HISTOGRAM_UNIT
    return counts.round().astype(np.int32)


def survivals_of(survival: Floats, steps: list[int], depths: int) -> Survivals:
    """Survivals that know this batch and nothing else."""
    known = Survivals(depths, steps, np.full(depths, 0.5), np.ones(depths))
    for _ in range(_TIMES):
        known.update(_OFTEN * histogram_of(survival, depths), survival.shape[1], freshness=1.0)
    return known


def expected_gain(known: Survivals, *drafts: float) -> Floats:
    """Accepted draft tokens of a request: a row for each number of steps, a column for each of ``drafts``, verified."""
    found = np.empty((len(known.steps), len(drafts)))
    known.read(np.tile(np.array(drafts, np.float64), (len(found), 1)), found)
    return found


def random_costs(rng: np.random.Generator, steps: list[int], bs: int) -> CostTable:
    """Random times, which need not rise."""
    tiers = sorted(set(rng.integers(1, bs * (steps[-1] + 1) + 3, 5).tolist()))

    def curve(scale: float) -> Curve:
        return Curve([1, bs + 1, 2 * bs + 1], (np.sort(rng.random(3)) * scale).tolist())

    return CostTable(
        tiers=Curve(tiers, (1 + rng.random(len(tiers)) * 4).tolist()),
        uniform={s + 1: Curve([bs], [1 + s * rng.random()]) for s in steps},
        draft={s: curve(0.3 * s) for s in steps if s},
        extend={s + 1: curve(0.1) for s in steps},
        kv_seconds={s: 1e-5 * (1 + s) for s in steps},
        host_seconds=0.05,
        batch_sizes=[bs, bs + 1],  # a graph for more requests: its padding takes what a tier has beyond all tokens
    )


def simple_costs(verify: float = 0.0, draft: float = 0.1, ragged: bool = True) -> CostTable:
    """A step of 1, plus ``verify`` for each token beyond 4 requests and ``draft`` for each draft step."""
    steps = [0, 1, 3]
    tiers = Curve([4, 6, 8, 10, 12, 14, 16], [1 + verify * (m - 4) for m in range(4, 17, 2)])
    return CostTable(
        tiers=tiers if ragged else None,
        uniform={s + 1: Curve([4], [1 + verify * 4 * s]) for s in steps},
        draft={s: Curve([4], [draft * s]) for s in steps if s},
        extend={s + 1: Curve([4], [0.0]) for s in steps},
        kv_seconds=dict.fromkeys(steps, 0.0),
        host_seconds=0,
        batch_sizes=[4],
    )


def chain(*conditional: float, bs: int = 4) -> Floats:
    """Survivals of requests that are all alike."""
    return np.tile(np.cumprod(conditional), (bs, 1))
