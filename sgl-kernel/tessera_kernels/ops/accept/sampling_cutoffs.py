"""The least logit of each row that is sampled: top-k, top-p and min-p, without a sort and without probabilities.

Each of all tokens, as SGLang's sampler has it (``top_k_top_p_min_p_sampling_from_probs_torch``, and FlashInfer's order
"joint"), which draws the token after a prompt; its speculative decoding takes p of the k likeliest, and knows no min-p.
Tokens as likely as the last one that is kept are kept too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class SamplingLimits(NamedTuple):
    """What each request wants to be sampled."""

    temperatures: torch.Tensor
    """float32, ``bs`` of them, above 0."""
    top_ks: torch.Tensor
    """int32 ``[bs]``, at least 1; may be above V, which keeps all."""
    top_ps: torch.Tensor
    """float32 ``[bs]``, in (0, 1]; 1 keeps all."""
    min_ps: torch.Tensor
    """float32 ``[bs]``, in [0, 1]: what is less likely than this share of the likeliest is left out; 0 keeps all."""


def sampling_cutoffs(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    limits: SamplingLimits,
    width: int,
    cutoffs: torch.Tensor,
) -> None:
    """Write the cutoff of every row that is some request's (``cutoffs``, in place).

    Three launches on a GPU, and one that clears, on the current stream, without a host sync;
    `sampling_cutoffs_torch` elsewhere.

    Args:
        logits: ``[rows, V]`` of any float type, columns contiguous, V below 2^24: request b has the rows
            ``qo_indptr[b]`` to ``qo_indptr[b + 1]``; more rows are padding.
        qo_indptr: int32 ``[bs + 1]`` or longer.
        limits: of each request.
        width: rows that a request has at most.
        cutoffs: float32 ``[rows]``, written: a logit below it is not sampled. Minus infinity where all are.
    """
    if logits.is_cuda:
        from tessera_kernels.triton.accept.sampling_cutoffs import sampling_cutoffs_triton

        sampling_cutoffs_triton(logits, qo_indptr, limits, width, cutoffs)
    else:
        sampling_cutoffs_torch(logits, qo_indptr, limits, width, cutoffs)


def sampling_cutoffs_torch(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    limits: SamplingLimits,
    width: int,
    cutoffs: torch.Tensor,
) -> None:
    """The torch twin of the Triton kernel: same arguments, same result up to the rounding of sums."""
    del width  # the kernel has a program for each row that could be
    temperatures, top_ks, top_ps, min_ps = limits
    bs, vocabulary = len(top_ks), logits.shape[1]
    rows = int(qo_indptr[bs])
    requests = torch.arange(bs, device=logits.device).repeat_interleave(qo_indptr[: bs + 1].diff().long())
    ordered = logits[:rows].float().sort(1, descending=True).values
    place = torch.arange(vocabulary, device=logits.device)
    last = top_ks[requests].long().clamp(max=vocabulary).unsqueeze(1) - 1
    p = (ordered / temperatures.view(-1, 1)[requests]).double().softmax(1)
    before = p.cumsum(1) - p
    shares, rarest = top_ps[requests].unsqueeze(1), min_ps[requests].unsqueeze(1) * p[:, :1]
    kept = (ordered >= ordered.gather(1, last)) & ((before < shares) | (shares >= 1)) & (p >= rarest)
    least = ordered.gather(1, place.where(kept, 0).amax(1, keepdim=True)).squeeze(1)
    cutoffs[:rows] = least.where(kept.logical_not().any(1), -torch.inf)
