"""Probabilities cut to the likeliest tokens, by their number (top-k) and by what they add up to (top-p).

First k, then p of what is left, as SGLang's speculative decoding has it.
"""

from __future__ import annotations

import torch


def truncate(p: torch.Tensor, top_ks: torch.Tensor | None, top_ps: torch.Tensor | None) -> torch.Tensor:
    """The probabilities that are sampled from: those that are kept add up to 1 in each row, all others are 0.

    Several launches of SGLang's operators on a GPU, on the current stream, without a host sync; `truncate_torch`
    elsewhere.

    Args:
        p: float32 ``[n, V]``, each row adding up to 1.
        top_ks: int32 ``[n]``, at least 1; may be above V, which keeps all. None for no limit.
        top_ps: float32 ``[n]``, in (0, 1]. None for no limit.

    Returns:
        Float32 ``[n, V]``. Tokens as likely as the last one that is kept are kept too.
    """
    if not p.is_cuda:
        return truncate_torch(p, top_ks, top_ps)
    from sgl_kernel import top_k_renorm_prob, top_p_renorm_prob

    if top_ks is not None:
        p = top_k_renorm_prob(p, top_ks)
    return p if top_ps is None else top_p_renorm_prob(p, top_ps)


def truncate_torch(p: torch.Tensor, top_ks: torch.Tensor | None, top_ps: torch.Tensor | None) -> torch.Tensor:
    """The torch twin of SGLang's operators: same arguments, same result up to rounding."""
    if top_ks is not None:
        p = _first(p, p.sort(1, descending=True).values, top_ks.long())
    if top_ps is not None:
        ordered = p.sort(1, descending=True).values
        before = ordered.cumsum(1) - ordered
        p = _first(p, ordered, (before < top_ps.unsqueeze(1)).sum(1))
    return p


def _first(p: torch.Tensor, ordered: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The first ``counts`` of each row, in falling order, made to add up to 1."""
    least = ordered.gather(1, counts.clamp(1, p.shape[1]).unsqueeze(1) - 1)
    kept = p.where(p >= least, 0)
    return kept / kept.sum(1, keepdim=True)
