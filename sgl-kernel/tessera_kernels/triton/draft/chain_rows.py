"""The Triton kernel of `tessera_kernels.ops.draft.chain_rows`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.triton.device.launcher import Launcher, power_of_2


@Launcher
@triton.jit(do_not_specialize=["width", "draft_stride"])  # type: ignore[untyped-decorator]
def _rows_kernel(  # type: ignore[no-untyped-def]
    anchors,
    drafts,
    seq_lens,
    tokens,
    positions,
    width,
    draft_stride,
    BLOCK: tl.constexpr,
):
    """Program b writes the chain of request b."""
    request = tl.program_id(0)
    depth = tl.arange(0, BLOCK)
    inside = depth < width
    drafted = tl.load(drafts + request * draft_stride + depth - 1, mask=inside & (depth > 0), other=0)
    row = request * width + depth
    tl.store(tokens + row, tl.where(depth == 0, tl.load(anchors + request), drafted), mask=inside)
    tl.store(positions + row, tl.load(seq_lens + request) + depth, mask=inside)


def chain_rows_triton(
    anchors: torch.Tensor,
    drafts: torch.Tensor,
    seq_lens: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """See `tessera_kernels.ops.draft.chain_rows`. One launch."""
    bs, width = drafts.shape[0], drafts.shape[1] + 1
    tensors = anchors, drafts, seq_lens, tokens, positions
    _rows_kernel((bs, 1, 1), tensors, (width, drafts.stride(0)), (power_of_2(width),), num_warps=1)
