"""Estimates of time, accepted tokens and goodput of each option of the next step, and the best option by them."""

import numpy as np

from tessera.tilespec.compiled import compiled
from tessera.tilespec.costs import Array, Correction, Integers
from tessera.tilespec.gain import Survivals
from tessera.tilespec.options import Estimates, Options


def estimate(
    bs: int, kv_tokens: int, options: Options, kv_seconds: Array, correction: Correction, survivals: Survivals
) -> Estimates:
    """Estimate all options; writes and returns ``options.estimates``.

    Args:
        bs: requests of the batch.
        kv_tokens: their tokens in the KV cache, in all.
        options: the options of this batch size.
        kv_seconds: ``[steps]``, seconds for each token in the KV cache.
        correction: the correction of the profile.
        survivals: the acceptance statistics.
    """
    estimates = options.estimates
    survivals.read(options.drafts, estimates.gain)
    profile = options.seconds, options.kinds, options.possible
    _estimate(bs, kv_tokens, *profile, kv_seconds, correction.own, correction.common, *estimates)
    return estimates


@compiled(
    "void(int64, int64, float64[:, ::1], int64[:, ::1], float64[:, ::1], float64[::1], float64[::1], float64,"
    " float64[:, ::1], float64[:, ::1], float64[:, ::1], float64[:, ::1])"
)
def _estimate(
    bs: int,
    kv_tokens: int,
    by_profile: Array,
    kinds: Integers,
    possible: Array,
    kv_seconds: Array,
    own: Array,
    common: float,
    profiled: Array,
    seconds: Array,
    gain: Array,
    goodput: Array,
) -> None:
    """Write an `Estimates`; ``gain`` comes as that of one request."""
    for row, column in np.ndindex(by_profile.shape):
        at = row, column
        profiled[at] = by_profile[at] + kv_tokens * kv_seconds[row]
        seconds[at] = profiled[at] * own[kinds[at]] * common
        gain[at] *= bs
        goodput[at] = (bs + gain[at]) / seconds[at] * possible[at]


@compiled("UniTuple(int64, 2)(float64[:, ::1], float64)")
def best(goodput: Array, ragged_advantage: float) -> tuple[int, int]:
    """Row and column of the best option: a uniform one, unless a ragged one is better by ``ragged_advantage``."""
    row = int(goodput[:, 0].argmax())
    ragged_row, column = divmod(int(goodput.argmax()), goodput.shape[1])
    if column and goodput[ragged_row, column] > ragged_advantage * goodput[row, 0]:
        return ragged_row, column
    return row, 0


@compiled("UniTuple(int64, 2)(float64[:, ::1], int64[:, ::1], int64[::1], int64, float64)")
def best_untimed(goodput: Array, kinds: Integers, measured: Integers, first: int, least: float) -> tuple[int, int]:
    """Row and column of the best option with goodput ``least`` that was timed less than ``first`` times, or -1, -1."""
    found = -1, -1
    for row, column in np.ndindex(goodput.shape):
        if goodput[row, column] >= least and measured[kinds[row, column]] < first:
            found = row, column
            least = float(goodput[row, column])
    return found
