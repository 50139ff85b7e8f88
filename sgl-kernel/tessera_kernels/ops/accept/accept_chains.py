"""Acceptance of draft chains: the accepted prefix of each chain and the token after it, from packed logits.

SGLang's operators take logits or probabilities of ``bs * N`` rows. For 64 requests, 8 tokens and a vocabulary of 128k
these are 262 MB, which are written several times. This op reads only the rows that were verified, once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.observe_acceptance import observe_acceptance
from tessera_kernels.registry import op


class ChainSampling(NamedTuple):
    """How tokens are sampled from the target's logits."""

    temperatures: torch.Tensor
    """float32, ``bs`` of them, above 0."""
    coins: torch.Tensor
    """float32 ``[bs, N]``, uniform in [0, 1): the one at depth d decides about the draft token d."""
    last_coins: torch.Tensor
    """float32 ``[bs]``, uniform in [0, 1): samples the token after the last accepted one."""
    threshold_single: float = 1.0
    """A draft token with at least this probability is accepted whatever its coin
    (``--speculative-accept-threshold-single``)."""
    threshold_acc: float = 1.0
    """Probabilities are divided by it before they are compared with coins (``--speculative-accept-threshold-acc``);
    above 0."""
    cutoffs: torch.Tensor | None = None
    """float32 ``[rows]``, of `tessera_kernels.ops.accept.sampling_cutoffs`: logits below are not sampled. None samples
    all."""
    proposals: torch.Tensor | None = None
    """float32 ``[bs, N - 1, D]``, contiguous: the distribution q that each draft token was sampled from. None where
    draft tokens are not samples."""
    draft_ids: torch.Tensor | None = None
    """int32 ``[V]``: the id of each token in the draft's vocabulary of D tokens, -1 for a token that it lacks and never
    proposes. None where both vocabularies are the same."""


class Observation(NamedTuple):
    """The other inputs of `tessera_kernels.ops.learning.observe_acceptance`, which then runs in the same launch."""

    confidence: torch.Tensor
    """float32 ``[bs, N - 1]``, rows of any stride, columns contiguous."""
    requests: torch.Tensor
    """``[bs]`` int32 or int64, each request's row of the pool, all different."""
    model: AcceptanceModel
    """Updated; of at least N - 1 depths."""


class AcceptedChains(NamedTuple):
    """Outputs of `accept_chains`, written everywhere; the layout of ``eagle_sample``."""

    tokens: torch.Tensor
    """int32 ``[bs * N]``: the next token after each accepted row; 0 after these."""
    accept_index: torch.Tensor
    """int32 ``[bs, N]``: the accepted rows of ``tokens``, the anchor's first; -1 after these."""
    accept_lens: torch.Tensor
    """int32 ``[bs]``: accepted rows, the anchor included."""

    @classmethod
    def create(cls, bs: int, width: int, device: torch.device) -> AcceptedChains:
        """Uninitialized outputs for ``bs`` chains of ``width`` tokens."""
        sizes = (bs * width,), (bs, width), (bs,)
        return cls(*(torch.empty(size, dtype=torch.int32, device=device) for size in sizes))


@op
def accept_chains(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    chains: torch.Tensor,
    sampling: ChainSampling | None,
    accepted: AcceptedChains,
    observation: Observation | None = None,
) -> None:
    """Accept a prefix of each chain (``accepted``, in place).

    Greedy (``sampling`` is None): a draft token is accepted if it is the target's arg-max, the first of equal ones.

    Sampled: a draft token is accepted if its coin is below the target's probability of it. After a rejection the next
    token is sampled from the target without the rejected token, after the last verified token from the target as it is
    (``tree_speculative_sampling_target_only`` for trees without branches). Outputs are distributed as the target, for
    any draft token that is not a sample.

    With proposals (rejection sampling: Leviathan et al., arXiv 2211.17192; ``chain_speculative_sampling_triton``) a
    draft token is accepted if its coin times q is below the target's probability p of it. After a rejection
    max(p - q, 0) is sampled. The number of verified tokens must not depend on the sampled token then.

    Tokens are in the vocabulary whatever the logits are, NaN included.

    Two launches on a GPU, on the current stream, without a host sync; elsewhere this reference in torch: equal to the
    kernels up to the rounding of probabilities.

    Args:
        logits: ``[rows, V]`` of any float type, columns contiguous, V below 2^24: request b has the rows
            ``qo_indptr[b]`` to ``qo_indptr[b + 1]``; more rows are padding.
        qo_indptr: int32 ``[bs + 1]`` or longer. Each request has 1 to N rows.
        chains: int64 ``[bs, N]``, contiguous: each request's anchor and its draft tokens.
        sampling: None decodes greedily.
        accepted: written.
        observation: None leaves the acceptance model alone.
    """
    bs, width = chains.shape
    begin, lens = qo_indptr[:bs].long(), qo_indptr[: bs + 1].diff().long()
    depth = torch.arange(width, device=chains.device)
    tested = depth < lens.unsqueeze(1) - 1
    rows = begin.unsqueeze(1) + torch.minimum(depth, lens.unsqueeze(1) - 1)
    draft = chains.roll(-1, 1).where(tested, -1)
    if sampling is None:
        tokens = logits.argmax(1)[rows]
        matches = tested & (tokens == draft)
    else:
        values = logits[rows].float()
        if sampling.cutoffs is not None:
            values = values.masked_fill(values < sampling.cutoffs[rows].unsqueeze(2), -torch.inf)
        p = (values / sampling.temperatures.view(-1, 1, 1)).softmax(2)
        probability = p.gather(2, draft.clamp(min=0).unsqueeze(2)).squeeze(2)
        matches = tested & _accepts(probability, draft, sampling)
    correct = matches.long().cumprod(1).sum(1)
    if sampling is not None:
        request = torch.arange(bs, device=chains.device)
        target, rejected = p[request, correct].double(), draft[request, correct]
        proposed = sampling.proposals is not None
        weights = _residual(target, rejected, correct, sampling) if proposed else _exclude(target, rejected)
        last = _sample(weights, sampling.last_coins)
        tokens = torch.where(depth < correct.unsqueeze(1), draft, last.unsqueeze(1))
    is_accepted = depth <= correct.unsqueeze(1)
    accepted.tokens.copy_(tokens.where(is_accepted, 0).flatten())
    accepted.accept_index.copy_(torch.arange(bs * width, device=chains.device).view(bs, width).where(is_accepted, -1))
    accepted.accept_lens.copy_(correct + 1)
    if observation is not None:
        confidence, requests, model = observation
        observe_acceptance.reference(confidence, requests, lens, accepted.accept_lens, model)


def _accepts(probability: torch.Tensor, draft: torch.Tensor, sampling: ChainSampling) -> torch.Tensor:
    """Which draft tokens ``[bs, N]`` their coins accept, by the target's probabilities of them."""
    if sampling.proposals is None:
        by_coin = sampling.coins < probability / sampling.threshold_acc
        return by_coin | (probability >= sampling.threshold_single)
    drafted = draft[:, :-1].clamp(min=0)
    ids = drafted if sampling.draft_ids is None else sampling.draft_ids[drafted].long()
    q = sampling.proposals.gather(2, ids.clamp(min=0).unsqueeze(2)).squeeze(2).where(ids >= 0, 0.0)
    return sampling.coins * torch.nn.functional.pad(q, (0, 1)) < probability


def _residual(p: torch.Tensor, rejected: torch.Tensor, depth: torch.Tensor, sampling: ChainSampling) -> torch.Tensor:
    """max(p - q, 0) for rows ``[bs, V]`` with a rejected token; p where none was rejected, or the residual is zero."""
    proposals, ids = sampling.proposals, sampling.draft_ids
    if proposals is None:
        raise ValueError("sampling.proposals: got None; rejection sampling needs the proposed distributions")
    bs, depths, _ = proposals.shape
    q = proposals[torch.arange(bs, device=p.device), depth.clamp(max=depths - 1)].double()
    if ids is not None:
        q = q[:, ids.clamp(min=0)].where(ids >= 0, 0.0)
    residual = torch.where(rejected.unsqueeze(1) >= 0, (p - q).clamp(min=0), p)
    return torch.where(residual.sum(1, keepdim=True) > 0, residual, p)


def _exclude(p: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Rows ``[bs, V]`` with a weight of 0 for each row's rejected token; -1 excludes none."""
    return p.scatter(1, rejected.clamp(min=0).unsqueeze(1), 0.0).where(rejected.unsqueeze(1) >= 0, p)


def _sample(weights: torch.Tensor, coins: torch.Tensor) -> torch.Tensor:
    """A token for each row ``[bs, V]`` of weights, by inversion of the cumulative sums."""
    below = weights.cumsum(1) <= coins.double().unsqueeze(1) * weights.sum(1, keepdim=True)
    last = torch.arange(weights.shape[1], device=weights.device).where(weights > 0, 0).amax(1)
    return torch.minimum(below.sum(1), last)  # rounding may leave the coin above the last sum
