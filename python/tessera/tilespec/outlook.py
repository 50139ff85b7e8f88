"""What each option of the next step promises."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tessera.tilespec.compiled import compiled
from tessera.tilespec.costs import Array, Correction
from tessera.tilespec.gain import Survivals
from tessera.tilespec.options import Options, Outlook


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
    outlook = options.outlook
    survivals.read(options.drafts, outlook.gain)
    profile = options.seconds, options.kinds, options.possible
    _look(bs, kv_tokens, *profile, kv_seconds, correction.own, correction.common, *outlook)
    return outlook


@compiled(
    "void(int64, int64, float64[:, ::1], int64[:, ::1], float64[:, ::1], float64[::1], float64[::1], float64,"
    " float64[:, ::1], float64[:, ::1], float64[:, ::1], float64[:, ::1])"
)
def _look(
    bs: int,
    kv_tokens: int,
    by_profile: Array,
    kinds: npt.NDArray[np.int64],
    possible: Array,
    kv_seconds: Array,
    own: Array,
    common: float,
    profiled: Array,
    seconds: Array,
    gain: Array,
    goodput: Array,
) -> None:
    """Write an `Outlook`; ``gain`` comes as that of one request."""
    for row, column in np.ndindex(by_profile.shape):
        at = row, column
        profiled[at] = by_profile[at] + kv_tokens * kv_seconds[row]
        seconds[at] = profiled[at] * own[kinds[at]] * common
        gain[at] *= bs
        goodput[at] = (bs + gain[at]) / seconds[at] * possible[at]
