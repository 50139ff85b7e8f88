"""The draft's next token and how sure it is of it, from one read of its logits."""

from __future__ import annotations

import torch


def draft_confidence(
    logits: torch.Tensor,
    probability: torch.Tensor,
    index: torch.Tensor,
    positions: torch.Tensor | None = None,
    chain: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
) -> None:
    """Write arg-max and greatest softmax probability of each row (in place), on the current stream.

    Runs two Triton kernels on a GPU and `draft_confidence_torch` elsewhere. Nothing is allocated that a CUDA graph
    could not hold, and the host waits for nothing.

    Args:
        logits: ``[n, V]`` bfloat16, float16 or float32, rows contiguous (any row stride), V at least 1.
        probability: ``[n]`` float32, any stride, written: 1 / sum(exp(x - max x)); 0 where that is not a number (a row
            with NaN, infinity or nothing but minus infinity).
        index: ``[n]`` int64, any stride, written: the lowest index of the maximum, where NaN counts as infinity.
            Always a valid index.
        positions: ``[n]`` int64, contiguous, goes up by one: where the next draft step writes. None is left out.
        chain: ``[n]`` int64, any stride, written: the index once more. None is left out.
        numbers: ``[V]`` int64, contiguous: what is written in the place of an index. None leaves it as it is.
    """
    if logits.is_cuda:
        from tessera_kernels.triton.draft.draft_confidence import draft_confidence_triton

        draft_confidence_triton(logits, probability, index, positions, chain, numbers)
    else:
        draft_confidence_torch(logits, probability, index, positions, chain, numbers)


def draft_confidence_torch(
    logits: torch.Tensor,
    probability: torch.Tensor,
    index: torch.Tensor,
    positions: torch.Tensor | None = None,
    chain: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
) -> None:
    """The torch twin of the Triton kernels: same arguments, same result up to the order of the sum."""
    values = logits.float()
    values = values.where(~values.isnan(), float("inf"))
    best, where = values.max(1, keepdim=True)
    where = where.squeeze(1)
    index.copy_(where if numbers is None else numbers[where])
    total = (values - best).exp().sum(1)
    probability.copy_((1 / total).nan_to_num(0.0))
    if positions is not None:
        positions.add_(1)
    if chain is not None:
        chain.copy_(index)
