"""The Triton kernel of `tessera_kernels.ops.learning.observe_acceptance`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.observe_acceptance import OFFSET_DECAY, OFFSET_LIMIT, OFFSET_RATE
from tessera_kernels.triton.device.acceptance_model import observe_chain
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

_NUMBERS = ["confidence_stride", "depths", "decay", "rate", "limit"]


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
    confidence_stride,
    depths,
    decay,
    rate,
    limit,
    DEPTHS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Program b observes request b."""
    row = tl.program_id(0)
    depth = tl.arange(0, DEPTHS)
    model, rates = (edges, logits, offsets, counts), (decay, rate, limit)
    own = confidence + row * confidence_stride
    verified, correct = depth < tl.load(verify_lens + row) - 1, tl.load(accept_lens + row) - 1
    observe_chain(own, requests, model, row, depth, verified, correct, depths, rates, BINS, LEVELS)


def observe_acceptance_triton(
    confidence: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """See `tessera_kernels.ops.learning.observe_acceptance`. One launch."""
    depths, bins = model.logits.shape
    _observe_kernel(
        (confidence.shape[0], 1, 1),
        (confidence, requests, verify_lens, accept_lens, model.edges, model.logits, model.offsets, model.counts),
        (confidence.stride(0), depths, OFFSET_DECAY, OFFSET_RATE, OFFSET_LIMIT),
        (power_of_2(depths), bins, bins.bit_length() - 1),
    )
