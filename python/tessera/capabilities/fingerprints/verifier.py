"""Compare claimed fingerprints with the verifier's own rows."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tessera.capabilities.fingerprints.codec import Bits, Fingerprint, values_at
from tessera.rows.reads import Points

SIGN_AND_EXPONENT, MANTISSA, MAGNITUDE = 0xFF80, 0x007F, 0x7FFF
"""Masks of a bfloat16's bits."""
NO_MATCH = 2.0**64
"""What the library says for the mantissa's error where no exponent matches."""


class Distance(NamedTuple):
    """How far one claimed fingerprint is from the verifier's rows, by the names of the library.

    Attributes:
        exp_mismatches: values whose exponent or sign differs. The library ignores the sign.
        mant_err_mean: mean difference of the mantissas, 0 to 127, of the others; 2**64 where there are none.
        mant_err_median: their median; of an even number the mean of the middle two.
    """

    exp_mismatches: int
    mant_err_mean: float
    mant_err_median: float


def distances(fingerprints: Sequence[Fingerprint], own: Sequence[Points]) -> list[Distance]:
    """The distance of each fingerprint from the verifier's values.

    Args:
        fingerprints: as claimed.
        own: the verifier's values of the same chunks, as many as each fingerprint proves.
    """
    found: dict[int, Distance] = {}
    for k in {len(one.places) for one in own}:
        chosen = [i for i, one in enumerate(own) if len(one.places) == k]
        claimed = values_at([fingerprints[i] for i in chosen], np.stack([own[i].places for i in chosen]))
        found |= zip(chosen, compare_bits(claimed, np.stack([own[i].bits for i in chosen])), strict=True)
    return [found[i] for i in range(len(own))]


def compare_bits(claimed: Bits, own: Bits) -> list[Distance]:
    """Compare the bits of values at the same places, ``[n, k]`` each, row by row."""
    k = own.shape[1]
    zeros = ((claimed | own) & MAGNITUDE) == 0
    same = (((claimed ^ own) & SIGN_AND_EXPONENT) == 0) | zeros
    errors = np.abs((claimed & MANTISSA).astype(np.int64) - (own & MANTISSA))
    counts = same.sum(1)
    some = np.maximum(counts, 1)
    means = (errors * same).sum(1) / some
    ordered = np.sort(np.where(same, errors, MANTISSA + 1), axis=1)  # what does not count comes last
    rows = np.arange(len(own))
    medians = (ordered[rows, (some - 1) // 2] + ordered[rows, some // 2]) / 2
    return [
        Distance(k - count, mean, median) if count else Distance(k, NO_MATCH, NO_MATCH)
        for count, mean, median in zip(counts.tolist(), means.tolist(), medians.tolist(), strict=True)
    ]


def as_text(found: Sequence[Distance], *, one: bool) -> str:
    """``toploc_verification_fingerprint_validation_result``: JSON in a string, as the field has it.

    Args:
        found: the distances.
        one: whether one fingerprint was claimed, by itself: then it is an object, else a list.
    """
    objects = [each._asdict() for each in found]
    return json.dumps(objects[0] if one else objects)
