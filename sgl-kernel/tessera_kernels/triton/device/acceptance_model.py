"""The acceptance model inside Triton kernels: see `tessera_kernels.ops.learning.acceptance_model`."""

import triton
import triton.language as tl

from tessera_kernels.ops.learning.histogram import PREDICTION_UNIT

_PREDICTION_SCALE = tl.constexpr(1 / PREDICTION_UNIT)


@triton.jit  # type: ignore[untyped-decorator]
def acceptance(confidence, edges, logits, offset, BINS: tl.constexpr, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bin and conditional acceptance of draft tokens of one depth, or of nodes of a tree.

    Args:
        confidence: float32 block.
        edges: pointer to the edges.
        logits: pointer to the table's row of this depth; may be a block.
        offset: float32, each request's offset, broadcastable to the block.
        BINS: number of bins.
        LEVELS: log2(BINS).

    Returns:
        Bins, int32, and probabilities, float32, of the block's shape.
    """
    index = tl.zeros_like(confidence).to(tl.int32)
    for level in tl.static_range(LEVELS):  # binary search
        edge = tl.load(edges + index + (BINS >> (level + 1)) - 1)
        index += tl.where(edge <= confidence, BINS >> (level + 1), 0)  # false for NaN
    return index, tl.sigmoid(tl.load(logits + index) + offset)


@triton.jit
def load_requests(confidence, requests, offsets, row, live, confidence_stride):  # type: ignore[no-untyped-def]
    """For each live row: its request's row of the pool, its offset, and whether the request has a draft."""
    request = tl.load(requests + row, mask=live, other=0).to(tl.int64)
    drafted = live & ~(tl.load(confidence + row * confidence_stride, mask=live, other=0.0) < 0)
    return request, tl.load(offsets + request, mask=live, other=0.0), drafted


@triton.jit
def prediction_units(survival):  # type: ignore[no-untyped-def]
    """Survivals as int32 in units of `PREDICTION_UNIT`, rounded; the reference is `prediction_units_torch`."""
    return (survival * _PREDICTION_SCALE + 0.5).to(tl.int32)


@triton.jit
def update_offsets(offsets, request, offset, gradient, live, decay, rate, limit):  # type: ignore[no-untyped-def]
    """One step of gradient ascent on the log-likelihood; the reference is `update_offsets_torch`."""
    updated = decay * offset + rate * gradient
    tl.store(offsets + request, tl.minimum(tl.maximum(updated, -limit), limit), mask=live)


@triton.jit  # type: ignore[untyped-decorator]
def observe_chain(  # type: ignore[no-untyped-def]
    confidence, requests, model, row, depth, verified, correct, depths, rates, BINS: tl.constexpr, LEVELS: tl.constexpr
):
    """Add the outcome of one request's chain to the counts, and update the request's offset.

    ``confidence`` points to the request's confidences, ``requests`` to each batch row's row of the pool, of which
    ``row`` is this request's. ``model`` has pointers to edges, logits, offsets and counts; the table has ``depths``
    rows. ``depth`` is a block of depths from 0, of which the ``verified`` ones were verified and the first ``correct``
    ones accepted. ``rates`` has the offsets' decay, learning rate and limit.
    """
    edges, logits, offsets, counts = model
    decay, rate, limit = rates
    request = tl.load(requests + row).to(tl.int64)
    offset = tl.load(offsets + request)
    drafted = ~(tl.load(confidence + 0 * depth) < 0)
    verified = verified & drafted
    tested = verified & (depth <= correct)
    succeeded = tested & (depth < correct)
    table_row = tl.minimum(depth, depths - 1)
    value = tl.load(confidence + depth, mask=verified, other=0.0)
    index, expected = acceptance(value, edges, logits + table_row * BINS, offset, BINS, LEVELS)
    cell = counts + table_row * BINS + index
    tl.atomic_add(cell, 1, mask=tested, sem="relaxed")
    tl.atomic_add(cell + depths * BINS, 1, mask=succeeded, sem="relaxed")
    tl.atomic_add(cell + 2 * depths * BINS, prediction_units(tl.cumprod(expected, 0)), mask=verified, sem="relaxed")
    gradient = tl.sum(tl.where(tested, succeeded.to(tl.float32) - expected, 0.0), 0)
    update_offsets(offsets, request, offset, gradient, True, decay, rate, limit)
