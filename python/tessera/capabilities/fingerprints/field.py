"""Polynomials over the integers modulo 65,497, many at once: what a TOPLOC fingerprint is made of.

All numbers are integers in float64 arrays. Residues are balanced, -32,749 to 32,749, until the end: sums of 512
products of two of them stay below 2**40, and sums of 256 products of three below 2**53. So nothing is rounded, in any
order, and most sums need not be reduced before they are used.
"""

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

_MOST_OF_THREE = 256
"""How many products of three residues may be added."""
_ENTRIES = 2**18
"""Entries of one table, 2 MiB: larger ones leave the caches."""


def interpolate(x: Residues, y: Residues) -> Residues:
    """Coefficients, ascending, of the polynomials of degree below k through k points each.

    Lagrange's formula, by linear algebra: with P the product of all (X - x_i), w_i = y_i / P'(x_i) and s_m the sum of
    all w_i x_i^m, coefficient j is the sum over m of s_m p_(j+1+m).

    Args:
        x: ``[n, k]`` residues, 0 to 65,496, distinct in each row.
        y: ``[n, k]`` residues.
    """
    return _in_parts(_interpolate, _balanced(x), _balanced(y), x.shape[1])


def evaluate(coefficients: Residues, x: Residues) -> Residues:
    """Values ``[n, k]``, 0 to 65,496, of n polynomials, each at k places of its own.

    By baby steps and giant steps: with B about the root of k, coefficient a + B b belongs to x^a (x^B)^b, so that each
    place needs 2 B powers, not k.

    Args:
        coefficients: ``[n, k]`` residues, ascending.
        x: ``[n, k]`` residues.
    """
    width = 3 * _baby_steps(x.shape[1])
    return _in_parts(
        lambda part, places: _positive(_values(part, _steps(places))), _balanced(coefficients), _balanced(x), width
    )


def _in_parts(
    function: Callable[[Residues, Residues], Residues], first: Residues, second: Residues, width: int
) -> Residues:
    """Apply to so many rows at once that their tables, ``[width, k]`` each, stay small."""
    n, k = first.shape
    step = max(1, _ENTRIES // (k * width))
    parts = [function(first[i : i + step], second[i : i + step]) for i in range(0, n, step)]
    return np.concatenate(parts) if parts else np.empty((0, k))


def _interpolate(x: Residues, y: Residues) -> Residues:
    k, steps = x.shape[1], _steps(x)
    product = _product(x)
    derivative = _balanced(product[:, 1:] * np.arange(1, k + 1))
    weights = _balanced(y * _inverses()[_positive(_values(derivative, steps)).astype(np.intp)])
    shifted = np.concatenate([product[:, 1:], np.zeros((len(x), k - 1))], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(shifted, k, axis=1)
    return _positive(_balanced(np.matmul(windows, _power_sums(weights, steps)[:, :, None])[:, :, 0]))


def _values(coefficients: Residues, steps: _Steps) -> Residues:
    """``[n, k]``: the polynomials at the places whose powers are given."""
    baby, giant = steps
    n, k = coefficients.shape
    padded = np.zeros((n, giant.shape[1] * baby.shape[1]))
    padded[:, :k] = coefficients
    blocks = padded.reshape(n, giant.shape[1], baby.shape[1])
    sums = np.matmul(blocks, baby)
    if blocks[0].size > _MOST_OF_THREE:
        sums = _balanced(sums)
    return _balanced(np.einsum("ngk,ngk->nk", sums, giant))


def _power_sums(weights: Residues, steps: _Steps) -> Residues:
    """``[n, k]``: the sums over i of w_i x_i^m, for m below k."""
    baby, giant = steps
    n, k = weights.shape
    weighted = _balanced(giant * weights[:, None, :])
    return _balanced(np.matmul(weighted, baby.transpose(0, 2, 1))).reshape(n, -1)[:, :k]


def _steps(x: Residues) -> _Steps:
    """``[n, B, k]``: x_i to the powers below B, and ``[n, G, k]``: to the multiples of B, up to the power of k - 1."""
    k = x.shape[1]
    count = _baby_steps(k)
    baby = _powers(x, count)
    return baby, _powers(_balanced(baby[:, -1] * x), -(-k // count))


def _baby_steps(k: int) -> int:
    return math.isqrt(k - 1) + 1 if k else 1


def _balanced(numbers: Residues) -> Residues:
    """Modulo the prime, -32,748 to 32,748 or one beyond. Exact for integers below 2**53.

    Few passes over few arrays, and a multiplication with the inverse: that is what takes the time. A quotient near a
    half may be rounded the other way, which is the one beyond.
    """
    quotients: Residues = numbers * (1.0 / PRIME)
    np.rint(quotients, out=quotients)
    quotients *= -PRIME
    quotients += numbers
    return quotients


def _positive(residues: Residues) -> Residues:
    """The same residues, 0 to 65,496."""
    return residues + PRIME * (residues < 0)


def _powers(x: Residues, count: int) -> Residues:
    """``[n, count, k]``: x_i to the power j, by doubling."""
    table = np.ones((len(x), count, x.shape[1]))
    factor, width = x, 1
    while width < count:
        upto = min(2 * width, count)
        table[:, width:upto] = _balanced(table[:, : upto - width] * factor[:, None, :])
        factor, width = _balanced(factor * factor), upto
    return table


def _product(x: Residues) -> Residues:
    """``[n, k+1]``: coefficients, ascending, of the products of all (X - x_i), pair by pair."""
    n, k = x.shape
    leaves = 1 << (k - 1).bit_length()
    factors = np.zeros((n, leaves, 2))
    factors[:, :, 0] = 1
    factors[:, :k, 0] = -x
    factors[:, :k, 1] = 1
    while factors.shape[1] > 1:
        factors = _pairs(factors[:, ::2], factors[:, 1::2])
    return factors[:, 0, : k + 1]


def _pairs(left: Residues, right: Residues) -> Residues:
    """Products of polynomials of equal degree, ``[..., degree+1]`` each."""
    degree = left.shape[-1] - 1
    padded = np.pad(right, ((0, 0), (0, 0), (degree, degree)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, degree + 1, axis=2)
    return _balanced(np.matmul(windows, left[:, :, ::-1, None])[..., 0])


@cache
def _inverses() -> Residues:
    """``[PRIME]``: the inverse of each residue but 0, by Fermat: a to the power PRIME - 2."""
    base = _balanced(np.arange(PRIME, dtype=np.float64))
    result = np.ones(PRIME)
    for bit in f"{PRIME - 2:b}":
        result = _balanced(result * result)
        if bit == "1":
            result = _balanced(result * base)
    return result
