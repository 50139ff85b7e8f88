"""Expert parallelism on the CPU engine. Scheduler process."""

from collections.abc import Callable
from typing import Any

import torch


def local_experts(
    original: Callable[..., torch.Tensor], layer: Any, x: torch.Tensor, topk_output: Any, moe_runner_config: Any
) -> torch.Tensor:
    """AROUND ``moe_forward_native``: the output of this rank's experts ``[tokens, H]``, to be summed over ranks.

    SGLang passes -1 for experts of other ranks, but its function counts tokens of expert -1. It does not support a
    token that chooses an expert twice either, so it is called once for each of a token's choices.
    """
    weights, ids = topk_output.topk_weights, topk_output.topk_ids
    total = torch.zeros_like(x)
    for choice in range(ids.shape[1]):
        tokens = (ids[:, choice] >= 0).nonzero().squeeze(1)
        if len(tokens) > 0:
            chosen = {"topk_weights": weights[tokens, choice, None], "topk_ids": ids[tokens, choice, None]}
            total[tokens] += original(layer, x[tokens], topk_output._replace(**chosen), moe_runner_config)
    return total
