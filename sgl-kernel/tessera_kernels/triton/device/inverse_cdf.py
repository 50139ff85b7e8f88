"""Sampling by the inverse of a cumulative distribution, inside Triton kernels."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def inverse_cdf(weights, before, target, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first index at which ``before`` plus the running sum of the weights exceeds the target.

    Rounding may leave the target above all sums; the index is never beyond the last positive weight.
    """
    index = tl.sum((before + tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
    return tl.minimum(index, tl.max(tl.where(weights > 0, tl.arange(0, SIZE), 0), 0))


@triton.jit  # type: ignore[untyped-decorator]
def sum_before(weights, index, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the weights before an index."""
    return tl.sum(tl.where(tl.arange(0, SIZE) < index, weights, 0.0), 0)
