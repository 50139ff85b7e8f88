"""How long a decision takes on this CPU: 64 requests, 40 tiers, 6 numbers of draft steps. No GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.gain import Survivals
from tessera.tilespec.policy import Policy
from tessera_kernels.histogram import HISTOGRAM_BINS

STEPS = (0, 1, 2, 3, 5, 7)
BS = 64


def median(call: Callable[[], object], times: int = 5000) -> float:
    """Median microseconds of a call."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)) * 1e6


def main() -> None:
    """Print medians."""
    by_batch = {s: Curve([1, 64], [4e-3, 4e-3 + 5e-4 * s]) for s in STEPS}
    costs = CostTable(
        tiers=Curve(range(16, 656, 16), np.linspace(4e-3, 14e-3, 40).tolist()),
        slots=None,
        uniform={s + 1: curve for s, curve in by_batch.items()},
        draft={s: curve for s, curve in by_batch.items() if s},
        extend={s + 1: curve for s, curve in by_batch.items()},
        kv_seconds=dict.fromkeys(STEPS, 1e-9),
        host_seconds=1e-4,
        batch_sizes=[1, 2, 4, 8, 16, 32, 64],
    )
    policy = Policy(costs, Survivals(7, STEPS, np.full(7, 0.7)))
    survival = np.random.default_rng(0).beta(2, 1, (BS, 7)).cumprod(1)
    histogram = np.zeros((2, 7, HISTOGRAM_BINS), np.int32)
    places = np.broadcast_to(np.arange(7), survival.shape), (survival * HISTOGRAM_BINS).astype(int)
    np.add.at(histogram[0], places, 1)
    np.add.at(histogram[1], places, (survival * 2**20).astype(int))
    print(f"choose                       {median(lambda: policy.choose(BS, 100_000)):6.1f} us")
    for drafted in (7, 3):
        taken = median(lambda d=drafted: policy.survivals.update(histogram, d))  # type: ignore[misc]
        print(f"take in a histogram of {drafted} deep {taken:6.1f} us")


if __name__ == "__main__":
    main()
