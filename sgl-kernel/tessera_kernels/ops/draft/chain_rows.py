"""What is verified of drafts without branches: each request's anchor and its draft tokens, one behind the other."""

from __future__ import annotations

import torch


def chain_rows(
    anchors: torch.Tensor,
    drafts: torch.Tensor,
    seq_lens: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Write tokens and positions of whole chains (in place), on the current stream.

    One launch of a Triton kernel on a GPU, `chain_rows_torch` elsewhere.

    Args:
        anchors: int64 ``[bs]``, contiguous: the last token of each request.
        drafts: int64 ``[bs, s]``, columns contiguous.
        seq_lens: int64 ``[bs]``, contiguous: cached tokens of each request.
        tokens: int64 ``[bs * (s + 1)]``, written.
        positions: int64, the same, written.
    """
    if drafts.is_cuda:
        from tessera_kernels.triton.draft.chain_rows import chain_rows_triton

        chain_rows_triton(anchors, drafts, seq_lens, tokens, positions)
    else:
        chain_rows_torch(anchors, drafts, seq_lens, tokens, positions)


def chain_rows_torch(
    anchors: torch.Tensor,
    drafts: torch.Tensor,
    seq_lens: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """The torch twin of the Triton kernel: same arguments, same result."""
    bs, steps = drafts.shape
    rows = tokens.view(bs, steps + 1)
    rows[:, 0], rows[:, 1:] = anchors, drafts
    positions.view(bs, steps + 1).copy_(seq_lens.unsqueeze(1) + torch.arange(steps + 1, device=drafts.device))
