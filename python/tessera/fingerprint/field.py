"""Polynomials over the integers modulo 65,497, many at once: what a TOPLOC fingerprint is made of.

All numbers are integers in float64 arrays: sums of 512 products of residues stay below 2**42, so that matrix products
are exact in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

PRIME = 65_497
"""The largest prime below the negative NaNs of bfloat16 (0xff81 and up, of which the first few fit): every finite
value's 16 bits are a residue."""

Residues = npt.NDArray[np.float64]
_Steps = tuple[Residues, Residues]
"""See `_steps`."""

_ENTRIES = 2**18
"""Entries of one table, 2 MiB: larger ones leave the caches."""


def interpolate(x: Residues, y: Residues) -> Residues:
    """Coefficients, ascending, of the polynomials of degree below k through k points each.

    Lagrange's formula, by linear algebra: with P the product of all (X - x_i), w_i = y_i / P'(x_i) and s_m the sum of
    all w_i x_i^m, coefficient j is the sum over m of s_m p_(j+1+m).

    Args:
        x: ``[n, k]`` residues, distinct in each row.
        y: ``[n, k]`` residues.
    """
    return _in_parts(_interpolate, x, y, x.shape[1])


def evaluate(coefficients: Residues, x: Residues) -> Residues:
    """Values ``[n, k]`` of n polynomials, each at k places of its own.

    By baby steps and giant steps: with B about the root of k, coefficient a + B b belongs to x^a (x^B)^b, so that each
    place needs 2 B powers, not k.

    Args:
        coefficients: ``[n, k]`` residues, ascending.
        x: ``[n, k]`` residues.
    """
    return _in_parts(lambda part, places: _values(part, _steps(places)), coefficients, x, 3 * _baby_steps(x.shape[1]))


def _in_parts(
    function: Callable[[Residues, Residues], Residues], first: Residues, second: Residues, width: int
) -> Residues:
    """Apply to so many rows at once that their tables, ``[k, width]`` each, stay small."""
    n, k = first.shape
    step = max(1, _ENTRIES // (k * width))
    parts = [function(first[i : i + step], second[i : i + step]) for i in range(0, n, step)]
    return np.concatenate(parts) if parts else np.empty((0, k))


def _interpolate(x: Residues, y: Residues) -> Residues:
    k, steps = x.shape[1], _steps(x)
    product = _product(x)
    derivative = _reduced(product[:, 1:] * np.arange(1, k + 1))
    weights = _reduced(y * _inverses()[_values(derivative, steps).astype(np.intp)])
    shifted = np.concatenate([product[:, 1:], np.zeros((len(x), k - 1))], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(shifted, k, axis=1)
    return _reduced(np.matmul(windows, _power_sums(weights, steps)[:, :, None])[:, :, 0])


def _values(coefficients: Residues, steps: _Steps) -> Residues:
    """``[n, k]``: the polynomials at the places whose powers are given."""
    baby, giant = steps
    n, k = coefficients.shape
    padded = np.zeros((n, giant.shape[2] * baby.shape[2]))
    padded[:, :k] = coefficients
    blocks = padded.reshape(n, giant.shape[2], baby.shape[2]).transpose(0, 2, 1)
    return _reduced((_reduced(np.matmul(baby, blocks)) * giant).sum(axis=2))


def _power_sums(weights: Residues, steps: _Steps) -> Residues:
    """``[n, k]``: the sums over i of w_i x_i^m, for m below k."""
    baby, giant = steps
    n, k = weights.shape
    weighted = _reduced(giant * weights[:, :, None])
    return _reduced(np.matmul(weighted.transpose(0, 2, 1), baby)).reshape(n, -1)[:, :k]


def _steps(x: Residues) -> _Steps:
    """``[n, k, B]``: x_i to the powers below B, and ``[n, k, G]``: to the multiples of B, up to the power of k - 1."""
    k = x.shape[1]
    count = _baby_steps(k)
    baby = _powers(x, count)
    return baby, _powers(_reduced(baby[:, :, -1] * x), -(-k // count))


def _baby_steps(k: int) -> int:
    return math.isqrt(k - 1) + 1 if k else 1


def _reduced(numbers: Residues) -> Residues:
    """Modulo the prime. Exact for integers below 2**44: with a half added no quotient is near an integer.

    In one array, and times the inverse: passes over memory and divisions are what takes the time.
    """
    quotients: Residues = numbers + 0.5
    quotients *= 1.0 / PRIME
    np.floor(quotients, out=quotients)
    quotients *= -PRIME
    quotients += numbers
    return quotients


def _powers(x: Residues, count: int) -> Residues:
    """``[n, k, count]``: x_i to the power j, by doubling."""
    table = np.ones((*x.shape, count))
    factor, width = x, 1
    while width < count:
        upto = min(2 * width, count)
        table[:, :, width:upto] = _reduced(table[:, :, : upto - width] * factor[:, :, None])
        factor, width = _reduced(factor * factor), upto
    return table


def _product(x: Residues) -> Residues:
    """``[n, k+1]``: coefficients, ascending, of the products of all (X - x_i), pair by pair."""
    n, k = x.shape
    leaves = 1 << (k - 1).bit_length()
    factors = np.zeros((n, leaves, 2))
    factors[:, :, 0] = 1
    factors[:, :k, 0] = _reduced(-x)
    factors[:, :k, 1] = 1
    while factors.shape[1] > 1:
        factors = _pairs(factors[:, ::2], factors[:, 1::2])
    return factors[:, 0, : k + 1]


def _pairs(left: Residues, right: Residues) -> Residues:
    """Products of polynomials of equal degree, ``[..., degree+1]`` each."""
    degree = left.shape[-1] - 1
    padded = np.pad(right, ((0, 0), (0, 0), (degree, degree)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, degree + 1, axis=2)
    return _reduced(np.matmul(windows, left[:, :, ::-1, None])[..., 0])


@cache
def _inverses() -> Residues:
    """``[PRIME]``: the inverse of each residue but 0, by Fermat: a to the power PRIME - 2."""
    base = np.arange(PRIME, dtype=np.float64)
    result = np.ones(PRIME)
    for bit in f"{PRIME - 2:b}":
        result = _reduced(result * result)
        if bit == "1":
            result = _reduced(result * base)
    return result
