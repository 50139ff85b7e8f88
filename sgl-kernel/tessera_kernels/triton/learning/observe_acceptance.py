"""The Triton kernel behind `tessera_kernels.ops.learning.observe_acceptance.observe_acceptance`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import PROMISED_UNIT
from tessera_kernels.ops.learning.observe_acceptance import OFFSET_KEPT, OFFSET_LIMIT, OFFSET_RATE
from tessera_kernels.triton.device.acceptance_model import acceptance, follow
from tessera_kernels.triton.device.launch import Launcher, power_of_2

_NUMBERS = ["confidence_stride", "depths", "kept", "rate", "limit"]
_PER_UNIT = tl.constexpr(1 / PROMISED_UNIT)


@triton.jit
def promised(survival):  # type: ignore[no-untyped-def]
    """Survivals as they are counted: `promised_torch` is its twin."""
    return (survival * _PER_UNIT + 0.5).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def observe_chain(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    edges,
    table,
    offsets,
    counts,
    request,
    depth,
    verified,
    correct,
    depths,
    kept,
    rate,
    limit,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Count what one request's draft tokens came to, and move its offset; ``confidence`` points to its first one."""
    pool = tl.load(requests + request).to(tl.int64)
    offset = tl.load(offsets + pool)
    drafted = ~(tl.load(confidence + 0 * depth) < 0)
    verified = verified & drafted
    tested = verified & (depth <= correct)
    right = tested & (depth < correct)
    row = tl.minimum(depth, depths - 1)
    sure = tl.load(confidence + depth, mask=verified, other=0.0)
    place, expected = acceptance(sure, edges, table + row * BINS, offset, BINS, LEVELS)
    cell = counts + row * BINS + place
    tl.atomic_add(cell, 1, mask=tested, sem="relaxed")
    tl.atomic_add(cell + depths * BINS, 1, mask=right, sem="relaxed")
    tl.atomic_add(cell + 2 * depths * BINS, promised(tl.cumprod(expected, 0)), mask=verified, sem="relaxed")
    gradient = tl.sum(tl.where(tested, right.to(tl.float32) - expected, 0.0), 0)
    follow(offsets, pool, offset, gradient, True, kept, rate, limit)


@Launcher
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _observe_kernel(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    verify_lens,
    accept_lens,
    edges,
    table,
    offsets,
    counts,
    confidence_stride,
    depths,
    kept,
    rate,
    limit,
    DEPTHS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Program b observes request b."""
    request = tl.program_id(0)
    depth = tl.arange(0, DEPTHS)
    observe_chain(
        confidence + request * confidence_stride,
        requests,
        edges,
        table,
        offsets,
        counts,
        request,
        depth,
        depth < tl.load(verify_lens + request) - 1,
        tl.load(accept_lens + request) - 1,
        depths,
        kept,
        rate,
        limit,
        BINS,
        LEVELS,
    )


def observe_acceptance_triton(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """See `tessera_kernels.ops.learning.observe_acceptance.observe_acceptance`. One launch."""
    depths, bins = model.logits.shape
    _observe_kernel(
        (confidence.shape[0], 1, 1),
        (confidence, requests, verify_lens, accept_lens, model.edges, model.logits, model.offsets, model.counts),
        (confidence.stride(0), depths, OFFSET_KEPT, OFFSET_RATE, OFFSET_LIMIT),
        (power_of_2(depths), bins, bins.bit_length() - 1),
    )
