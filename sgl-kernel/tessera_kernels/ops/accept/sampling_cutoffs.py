"""Top-k, top-p and min-p as the least logit of each row that is sampled, without sorting.

All limits apply to the full distribution, as in SGLang's sampler (``top_k_top_p_min_p_sampling_from_probs_torch``, and
FlashInfer's order "joint"), which samples the token after a prompt. SGLang's speculative decoding applies top-p after
top-k and has no min-p. Tokens tied with the last one that is kept are kept too.
"""

from typing import NamedTuple

import torch

from tessera_kernels.registry import op


class SamplingLimits(NamedTuple):
    """Sampling parameters of each request."""

    temperatures: torch.Tensor
    """float32, ``bs`` of them, above 0."""
    top_ks: torch.Tensor
    """int32 ``[bs]``, at least 1; V or more keeps all."""
    top_ps: torch.Tensor
    """float32 ``[bs]``, in (0, 1]; 1 keeps all."""
    min_ps: torch.Tensor
    """float32 ``[bs]``, in [0, 1]: tokens below this fraction of the greatest probability are dropped; 0 keeps all."""


@op
def sampling_cutoffs(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    limits: SamplingLimits,
    width: int,
    cutoffs: torch.Tensor,
) -> None:
    """Write the cutoff of every row that belongs to a request (``cutoffs``, in place).

    Three launches and a memset on a GPU, on the current stream, without a host sync; elsewhere this reference in torch:
    equal to the kernels up to the rounding of sums.

    Args:
        logits: ``[rows, V]`` of any float type, columns contiguous, V below 2^24: request b has the rows
            ``qo_indptr[b]`` to ``qo_indptr[b + 1]``; more rows are padding.
        qo_indptr: int32 ``[bs + 1]`` or longer.
        limits: of each request.
        width: the most rows of a request.
        cutoffs: float32 ``[rows]``, written: logits below it are not sampled. Minus infinity where all are.
    """
    del width  # the size of the kernels' grid
    temperatures, top_ks, top_ps, min_ps = limits
    bs, vocabulary = len(top_ks), logits.shape[1]
    rows = int(qo_indptr[bs])
    requests = torch.arange(bs, device=logits.device).repeat_interleave(qo_indptr[: bs + 1].diff().long())
    ordered = logits[:rows].float().sort(1, descending=True).values
    rank = torch.arange(vocabulary, device=logits.device)
    last = top_ks[requests].long().clamp(max=vocabulary).unsqueeze(1) - 1
    p = (ordered / temperatures.view(-1, 1)[requests]).double().softmax(1)
    before = p.cumsum(1) - p
    top_p, min_p = top_ps[requests].unsqueeze(1), min_ps[requests].unsqueeze(1) * p[:, :1]
    in_support = (ordered >= ordered.gather(1, last)) & ((before < top_p) | (top_p >= 1)) & (p >= min_p)
    least = ordered.gather(1, rank.where(in_support, 0).amax(1, keepdim=True)).squeeze(1)
    cutoffs[:rows] = least.where(in_support.logical_not().any(1), -torch.inf)
