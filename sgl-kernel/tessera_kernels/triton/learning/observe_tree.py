"""The Triton kernel of `tessera_kernels.ops.learning.observe_tree`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.observe_acceptance import OFFSET_DECAY, OFFSET_LIMIT, OFFSET_RATE
from tessera_kernels.triton.device.acceptance_model import acceptance, load_requests, prediction_units, update_offsets
from tessera_kernels.triton.device.launcher import Launcher, power_of_2

REQUESTS_PER_PROGRAM = 32
_NUMBERS = ["bs", "scores_stride", "path", "plane", "decay", "rate", "limit"]


@Launcher
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _observe_tree_kernel(  # type: ignore[no-untyped-def]
    scores,
    requests,
    verify_lens,
    accept_index,
    edges,
    logits,
    offsets,
    counts,
    bs,
    scores_stride,
    path,
    plane,
    decay,
    rate,
    limit,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Program i observes requests ``i * ROWS ..``; ``plane`` is the size of each of the three counts."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    live = row < bs
    request, offset, drafted = load_requests(scores, requests, offsets, row, live, scores_stride)
    verified = tl.load(verify_lens + row, mask=live, other=1)
    tested = drafted[:, None] & ((column < COLUMNS)[None, :] & (column[None, :] < verified[:, None] - 1))
    score = tl.load(scores + row[:, None] * scores_stride + column[None, :], mask=tested, other=0.0)
    index, expected = acceptance(score, edges, logits, offset[:, None], BINS, LEVELS)

    padded_index = row[:, None] * (COLUMNS + 1) + 1 + column[None, :]
    accepted = padded_index < 0
    for step in range(path):
        accepted_index = tl.load(accept_index + row * path + step, mask=live, other=-1)
        accepted = accepted | (padded_index == accepted_index[:, None])
    succeeded = tested & accepted
    tl.atomic_add(counts + index, 1, mask=tested, sem="relaxed")
    tl.atomic_add(counts + plane + index, 1, mask=succeeded, sem="relaxed")
    tl.atomic_add(counts + 2 * plane + index, prediction_units(expected), mask=tested, sem="relaxed")
    gradient = tl.sum(tl.where(tested, succeeded.to(tl.float32) - expected, 0.0), 1)
    update_offsets(offsets, request, offset, gradient, live, decay, rate, limit)


def observe_tree_triton(
    scores: torch.Tensor,
    requests: torch.Tensor,
    verify_lens: torch.Tensor,
    accept_index: torch.Tensor,
    model: AcceptanceModel,
) -> None:
    """See `tessera_kernels.ops.learning.observe_tree`. One launch."""
    bs, columns = scores.shape
    bins = model.logits.shape[1]
    path, plane = accept_index.shape[1], model.counts.stride(0)
    _observe_tree_kernel(
        (-(-bs // REQUESTS_PER_PROGRAM), 1, 1),
        (scores, requests, verify_lens, accept_index, model.edges, model.logits, model.offsets, model.counts),
        (bs, scores.stride(0), path, plane, OFFSET_DECAY, OFFSET_RATE, OFFSET_LIMIT),
        (REQUESTS_PER_PROGRAM, columns, power_of_2(columns), bins, bins.bit_length() - 1),
    )
