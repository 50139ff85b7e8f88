"""Sample the draft's next token, and keep the distribution q that it was sampled from.

SGLang divides, takes a softmax, draws a random number for each token of the vocabulary, divides by it and takes the
arg-max: eight kernels that each read or write the whole vocabulary. This op reads the logits twice and writes q once.
"""

import torch

from tessera_kernels.registry import op

MAX_VALUE = 3e38
"""Upper bound of a logit divided by its temperature, which may overflow."""


@op
def draft_proposal(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    coins: torch.Tensor,
    proposals: torch.Tensor,
    index: torch.Tensor,
    probability: torch.Tensor,
) -> None:
    """Write q, a token sampled from it, and the greatest probability in it (in place).

    NaN counts as minus infinity. In a row with only minus infinity, q is 1 for token 0, and ``probability`` is 0.

    Two launches on a GPU, on the current stream, without a host sync, also in CUDA graphs; elsewhere this reference in
    torch: equal to the kernels up to the rounding of probabilities.

    Args:
        logits: ``[n, D]`` bfloat16, float16 or float32, rows contiguous (any row stride), D below 2^24.
        temperatures: ``[n, 1]`` float32, above 0.
        coins: ``[n]`` float32, uniform in [0, 1).
        proposals: ``[n, D]`` float32, contiguous, written: q = softmax(logits / temperature).
        index: ``[n]`` int64, contiguous, written: the first token at which the running sum of q exceeds the coin.
        probability: ``[n]`` float32, any stride, written: max q. It does not depend on the coin.
    """
    values = (logits.float() / temperatures).nan_to_num(-torch.inf, MAX_VALUE, -torch.inf)
    empty = (values == -torch.inf).all(1)
    values[empty, 0] = 0.0
    q = values.softmax(1)
    proposals.copy_(q)
    below = q.double().cumsum(1) <= coins.double().unsqueeze(1)
    last = torch.arange(q.shape[1], device=q.device).where(q > 0, 0).amax(1)
    index.copy_(torch.minimum(below.sum(1), last))  # rounding may leave the coin above the last sum
    probability.copy_(q.amax(1).masked_fill(empty, 0.0))
