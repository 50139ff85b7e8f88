"""What each option of the next step promises."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.tilespec.compiled import compiled
from tessera.tilespec.costs import Array, Correction
from tessera.tilespec.gain import Survivals
from tessera.tilespec.options import Options


class Outlook(NamedTuple):
    """Of one batch, in the shape of its `Options`: a row for each number of steps."""

    profiled: Array
    """Seconds by the profile."""
    seconds: Array
    """Seconds expected, corrected."""
    gain: Array
    """Expected accepted draft tokens of the batch."""
    goodput: Array
    """Expected tokens in a second; 0 where there is no such step."""


def look(
    bs: int, kv_tokens: int, options: Options, kv_seconds: Array, correction: Correction, survivals: Survivals
) -> Outlook:
    """What the options of ``bs`` requests with ``kv_tokens`` cached in all promise.

    Args:
        bs: requests.
        kv_tokens: tokens of theirs in the KV cache.
        options: of this batch size.
        kv_seconds: by row, what each token in the KV cache adds.
        correction: of the profile.
        survivals: what drafts promise.
    """
    found = np.empty((4, *options.drafts.shape))
    survivals.read(options.drafts, found[2])
    profile = options.seconds, options.kinds, options.possible
    _look(bs, kv_tokens, *profile, kv_seconds, correction.own, correction.common, found)
    return Outlook(*found)


@compiled(
    "void(int64, int64, float64[:, ::1], int64[:, ::1], float64[:, ::1], float64[::1], float64[::1], float64,"
    " float64[:, :, ::1])"
)
def _look(
    bs: int,
    kv_tokens: int,
    seconds: Array,
    kinds: npt.NDArray[np.int64],
    possible: Array,
    kv_seconds: Array,
    own: Array,
    common: float,
    found: Array,
) -> None:
    """Fill in the rest: in ``found[2]`` lies the gain of one request."""
    for row, column in np.ndindex(seconds.shape):
        profiled = seconds[row, column] + kv_tokens * kv_seconds[row]
        corrected = profiled * own[kinds[row, column]] * common
        gain = found[2, row, column] * bs
        found[0, row, column] = profiled
        found[1, row, column] = corrected
        found[2, row, column] = gain
        found[3, row, column] = (bs + gain) / corrected * possible[row, column]
