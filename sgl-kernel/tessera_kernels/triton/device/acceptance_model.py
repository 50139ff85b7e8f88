"""The acceptance model inside Triton kernels: see `tessera_kernels.ops.learning.acceptance_model`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def acceptance(confidence, edges, logits, offset, BINS: tl.constexpr, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bin and conditional acceptance of draft tokens of one depth.

    Args:
        confidence: block of float32.
        edges: pointer to the edges.
        logits: pointer to the depth's row of the table.
        offset: float32, each request's offset, of a shape that fits the block.
        BINS: bins.
        LEVELS: log2(BINS).
    """
    place = tl.zeros_like(confidence).to(tl.int32)
    for level in tl.static_range(LEVELS):
        edge = tl.load(edges + place + (BINS >> (level + 1)) - 1)
        place += tl.where(edge <= confidence, BINS >> (level + 1), 0)  # NaN is never beyond an edge
    return place, tl.sigmoid(tl.load(logits + place) + offset)


@triton.jit
def requests_of(confidence, requests, offsets, row, live, confidence_stride):  # type: ignore[no-untyped-def]
    """Of each live row its request's row of the pool and offset, and whether it has a draft in truth."""
    request = tl.load(requests + row, mask=live, other=0).to(tl.int64)
    drafted = live & ~(tl.load(confidence + row * confidence_stride, mask=live, other=0.0) < 0)
    return request, tl.load(offsets + request, mask=live, other=0.0), drafted


@triton.jit
def follow(offsets, request, offset, gradient, live, kept, rate, limit):  # type: ignore[no-untyped-def]
    """Move the offsets of requests along the gradient of their log-likelihood: `follow_torch` is its twin."""
    moved = kept * offset + rate * gradient
    tl.store(offsets + request, tl.minimum(tl.maximum(moved, -limit), limit), mask=live)
