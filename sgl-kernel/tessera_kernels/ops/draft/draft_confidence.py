"""The draft's most likely next token and its probability, from one read of the logits."""

import torch

from tessera_kernels.registry import op


@op
def draft_confidence(
    logits: torch.Tensor,
    probability: torch.Tensor,
    index: torch.Tensor,
    positions: torch.Tensor | None = None,
    chain: torch.Tensor | None = None,
) -> None:
    """Write arg-max and greatest softmax probability of each row (in place).

    Two launches on a GPU, on the current stream, without a host sync, also in CUDA graphs; elsewhere this reference in
    torch: equal to the kernels up to the order of the sum.

    Args:
        logits: ``[n, V]`` bfloat16, float16 or float32, rows contiguous (any row stride), V at least 1.
        probability: ``[n]`` float32, any stride, written: 1 / sum(exp(x - max x)); 0 where that is NaN (a row with NaN
            or infinity, or only minus infinity).
        index: ``[n]`` int64, any stride, written: the lowest index of the maximum, with NaN as infinity. Always a valid
            index.
        positions: ``[n]`` int64, contiguous, incremented: the position that the next draft step writes. Optional.
        chain: ``[n]`` int64, any stride, written: the same as ``index``. Optional.
    """
    values = logits.float()
    values = values.where(~values.isnan(), float("inf"))
    best, where = values.max(1, keepdim=True)
    index.copy_(where.squeeze(1))
    total = (values - best).exp().sum(1)
    probability.copy_((1 / total).nan_to_num(0.0))
    if positions is not None:
        positions.add_(1)
    if chain is not None:
        chain.copy_(index)
