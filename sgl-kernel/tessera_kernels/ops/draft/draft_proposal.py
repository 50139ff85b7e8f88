"""The draft's next token as a sample, what it was sampled from, and how sure the draft is.

SGLang divides, takes a softmax, draws a number for each token of the vocabulary, divides by it and takes the arg-max:
eight kernels, each of which reads or writes the whole vocabulary. Here the logits are read twice, and q is written.
"""

from __future__ import annotations

import torch

MOST = 3e38
"""A logit over the temperature may be no number for the greatest float; it counts as that."""


def draft_proposal(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    coins: torch.Tensor,
    proposals: torch.Tensor,
    index: torch.Tensor,
    probability: torch.Tensor,
) -> None:
    """Write q, a token drawn from it, and its greatest value (in place), on the current stream.

    What is no number counts as minus infinity. A row with nothing else proposes token 0 for certain, with
    ``probability`` 0.

    Two Triton kernels on a GPU and `draft_proposal_torch` elsewhere. Nothing is allocated that a CUDA graph could not
    hold, and the host waits for nothing.

    Args:
        logits: ``[n, D]`` bfloat16, float16 or float32, rows contiguous (any row stride), D below 2^24.
        temperatures: ``[n, 1]`` float32, above 0.
        coins: ``[n]`` float32, uniform in [0, 1).
        proposals: ``[n, D]`` float32, contiguous, written: q = softmax(logits / temperature).
        index: ``[n]`` int64, contiguous, written: the first token at which q adds up to more than the coin.
        probability: ``[n]`` float32, any stride, written: max q. It does not depend on the coin.
    """
    if logits.is_cuda:
        from tessera_kernels.triton.draft.draft_proposal import draft_proposal_triton

        draft_proposal_triton(logits, temperatures, coins, proposals, index, probability)
    else:
        draft_proposal_torch(logits, temperatures, coins, proposals, index, probability)


def draft_proposal_torch(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    coins: torch.Tensor,
    proposals: torch.Tensor,
    index: torch.Tensor,
    probability: torch.Tensor,
) -> None:
    """The torch twin of the Triton kernels: same arguments, same result up to the rounding of probabilities."""
    values = (logits.float() / temperatures).nan_to_num(-torch.inf, MOST, -torch.inf)
    nothing = (values == -torch.inf).all(1)
    values[nothing, 0] = 0.0
    q = values.softmax(1)
    proposals.copy_(q)
    below = q.double().cumsum(1) <= coins.double().unsqueeze(1)
    last = torch.arange(q.shape[1], device=q.device).where(q > 0, 0).amax(1)
    index.copy_(torch.minimum(below.sum(1), last))  # rounding may leave the coin behind the last token
    probability.copy_(q.amax(1).masked_fill(nothing, 0.0))
