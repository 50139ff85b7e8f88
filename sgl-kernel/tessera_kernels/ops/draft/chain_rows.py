"""The rows of a verification of whole chains: each request's anchor, then its draft tokens."""

import torch

from tessera_kernels.registry import op


@op
def chain_rows(
    anchors: torch.Tensor,
    drafts: torch.Tensor,
    seq_lens: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Write the tokens and positions of whole chains (in place).

    One launch on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernel.

    Args:
        anchors: int64 ``[bs]``, contiguous: the last token of each request.
        drafts: int64 ``[bs, s]``, columns contiguous.
        seq_lens: int64 ``[bs]``, contiguous: cached tokens of each request.
        tokens: int64 ``[bs * (s + 1)]``, written.
        positions: int64 ``[bs * (s + 1)]``, written.
    """
    bs, steps = drafts.shape
    rows = tokens.view(bs, steps + 1)
    rows[:, 0], rows[:, 1:] = anchors, drafts
    positions.view(bs, steps + 1).copy_(seq_lens.unsqueeze(1) + torch.arange(steps + 1, device=drafts.device))
