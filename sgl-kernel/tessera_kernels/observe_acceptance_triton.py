"""The Triton kernel behind `tessera_kernels.observe_acceptance.observe_acceptance`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.acceptance_model import AcceptanceModel
from tessera_kernels.acceptance_model_triton import acceptance, follow, requests_of
from tessera_kernels.launch import Launcher
from tessera_kernels.observe_acceptance import OFFSET_KEPT, OFFSET_LIMIT, OFFSET_RATE

REQUESTS_PER_PROGRAM = 128
_NUMBERS = ["bs", "confidence_stride", "depths", "steps", "kept", "rate", "limit"]


@Launcher
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _observe_kernel(  # type: ignore[no-untyped-def]
    confidence,
    requests,
    verify_lens,
    accept_lens,
    edges,
    logits,
    offsets,
    counts,
    bs,
    confidence_stride,
    depths,
    steps,
    kept,
    rate,
    limit,
    ROWS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Program i observes requests ``i * ROWS ..``; no other program has the same ones."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < bs
    request, offset, drafted = requests_of(confidence, requests, offsets, row, live, confidence_stride)
    verified = tl.load(verify_lens + row, mask=live, other=1)
    accepted = tl.load(accept_lens + row, mask=live, other=1)
    gradient = tl.zeros((ROWS,), tl.float32)
    for depth in range(steps):
        sure = tl.load(confidence + row * confidence_stride + depth, mask=live, other=0.0)
        place, expected = acceptance(sure, edges, logits + depth * BINS, offset, BINS, LEVELS)
        tested = drafted & (depth < verified - 1) & (depth < accepted)
        succeeded = tested & (depth < accepted - 1)
        cell = counts + depth * BINS + place
        tl.atomic_add(cell, 1, mask=tested, sem="relaxed")
        tl.atomic_add(cell + depths * BINS, 1, mask=succeeded, sem="relaxed")
        gradient += tl.where(tested, succeeded.to(tl.float32) - expected, 0.0)
    follow(offsets, request, offset, gradient, live, kept, rate, limit)


def observe_acceptance_triton(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """See `tessera_kernels.observe_acceptance.observe_acceptance`. One launch."""
    bs, steps = confidence.shape
    depths, bins = model.logits.shape
    _observe_kernel(
        (-(-bs // REQUESTS_PER_PROGRAM), 1, 1),
        (confidence, requests, verify_lens, accept_lens, model.edges, model.logits, model.offsets, model.counts),
        (bs, confidence.stride(0), depths, steps, OFFSET_KEPT, OFFSET_RATE, OFFSET_LIMIT),
        (REQUESTS_PER_PROGRAM, bins, bins.bit_length() - 1),
    )
