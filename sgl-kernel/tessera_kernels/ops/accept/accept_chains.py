"""How much of each chain of draft tokens the target accepts, and the token after it, from packed logits.

SGLang's operators want logits, or probabilities, of ``bs * N`` rows: at 64 requests, 8 tokens and a vocabulary of 128k
those are 262 MB, written several times over. Here the rows that were verified are read once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.observe_acceptance import observe_acceptance_torch


class ChainSampling(NamedTuple):
    """How tokens are sampled: the target's probabilities after temperature, of those that are not cut off."""

    temperatures: torch.Tensor
    """float32, ``bs`` of them, above 0."""
    coins: torch.Tensor
    """float32 ``[bs, N]``, uniform in [0, 1): the one at depth d decides the draft token d."""
    last_coins: torch.Tensor
    """float32 ``[bs]``, uniform in [0, 1): samples the token after the last accepted one."""
    single: float = 1.0
    """A draft token at least so likely is accepted whatever its coin (``--speculative-accept-threshold-single``)."""
    total: float = 1.0
    """Probabilities count as divided by this (``--speculative-accept-threshold-acc``), above 0."""
    cutoffs: torch.Tensor | None = None
    """float32 ``[rows]``, of `tessera_kernels.ops.accept.sampling_cutoffs`: logits below are not sampled. None samples
    all."""
    proposals: torch.Tensor | None = None
    """float32 ``[bs, N - 1, D]``, contiguous: the probabilities q that each draft token was sampled from. None where
    draft tokens are no samples."""
    draft_places: torch.Tensor | None = None
    """int32 ``[V]``: which of the D tokens of the draft's vocabulary each token is, -1 for those that it does not have
    and never proposes. None where it has the target's."""


class Observation(NamedTuple):
    """What `tessera_kernels.ops.learning.observe_acceptance` learns from the outcome, in the same launch."""

    confidence: torch.Tensor
    """float32 ``[bs, N - 1]``, rows of any stride, columns contiguous."""
    requests: torch.Tensor
    """``[bs]`` int32 or int64, each request's row of the pool, no two alike."""
    model: AcceptanceModel
    """Updated; its depths are at least N - 1."""


class AcceptedChains(NamedTuple):
    """Outputs of `accept_chains`, written everywhere; as ``eagle_sample`` has them."""

    tokens: torch.Tensor
    """int32 ``[bs * N]``: the token after each accepted row; 0 behind."""
    places: torch.Tensor
    """int32 ``[bs, N]``: the accepted rows of ``tokens``, the anchor's first; -1 behind."""
    lens: torch.Tensor
    """int32 ``[bs]``: accepted rows, the anchor included."""

    @classmethod
    def create(cls, bs: int, width: int, device: torch.device) -> AcceptedChains:
        """Fresh outputs."""
        sizes = (bs * width,), (bs, width), (bs,)
        return cls(*(torch.empty(size, dtype=torch.int32, device=device) for size in sizes))


def accept_chains(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    chains: torch.Tensor,
    sampling: ChainSampling | None,
    accepted: AcceptedChains,
    observation: Observation | None = None,
) -> None:
    """Accept a prefix of each chain (``accepted``, in place).

    Greedy (``sampling`` is None): a draft token is accepted if it is the target's likeliest, the first of equal ones.
    Else it is accepted if its coin is below the target's probability of it; after a rejection the target without that
    token is sampled, after the last verified token the target as it is (``tree_speculative_sampling_target_only`` for
    trees without branches; what is sampled is distributed as the target, for any draft that is no sample).

    With proposals (rejection sampling: Leviathan et al., arXiv 2211.17192; ``chain_speculative_sampling_triton``) it is
    accepted if its coin times q is below the target's probability p of it; after a rejection max(p - q, 0) is sampled.
    How much of a draft is verified must not depend on the sampled token then.

    Tokens are in the vocabulary whatever the logits are, also where they are no numbers.

    Two launches on a GPU, on the current stream, without a host sync; `accept_chains_torch` elsewhere.

    Args:
        logits: ``[rows, V]`` of any float type, columns contiguous, V below 2^24: request b has the rows
            ``qo_indptr[b]`` to ``qo_indptr[b + 1]``; more rows are padding.
        qo_indptr: int32 ``[bs + 1]`` or longer. Each request has 1 to N rows.
        chains: int64 ``[bs, N]``, contiguous: each request's anchor and its draft tokens.
        sampling: None takes the likeliest token.
        accepted: written.
        observation: None learns nothing.
    """
    if logits.is_cuda:
        from tessera_kernels.triton.accept.accept_chains import accept_chains_triton

        accept_chains_triton(logits, qo_indptr, chains, sampling, accepted, observation)
    else:
        accept_chains_torch(logits, qo_indptr, chains, sampling, accepted, observation)


def accept_chains_torch(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    chains: torch.Tensor,
    sampling: ChainSampling | None,
    accepted: AcceptedChains,
    observation: Observation | None = None,
) -> None:
    """The torch twin of the Triton kernels: same arguments, same result up to the rounding of probabilities."""
    bs, width = chains.shape
    begin, lens = qo_indptr[:bs].long(), qo_indptr[: bs + 1].diff().long()
    depth = torch.arange(width, device=chains.device)
    tested = depth < lens.unsqueeze(1) - 1
    rows = begin.unsqueeze(1) + torch.minimum(depth, lens.unsqueeze(1) - 1)
    draft = chains.roll(-1, 1).where(tested, -1)
    if sampling is None:
        tokens = logits.argmax(1)[rows]
        right = tested & (tokens == draft)
    else:
        values = logits[rows].float()
        if sampling.cutoffs is not None:
            values = values.masked_fill(values < sampling.cutoffs[rows].unsqueeze(2), -torch.inf)
        p = (values / sampling.temperatures.view(-1, 1, 1)).softmax(2)
        chance = p.gather(2, draft.clamp(min=0).unsqueeze(2)).squeeze(2)
        right = tested & _lucky(chance, draft, sampling)
    correct = right.long().cumprod(1).sum(1)
    if sampling is not None:
        at = torch.arange(bs, device=chains.device)
        whole, rejected = p[at, correct].double(), draft[at, correct]
        proposed = sampling.proposals is not None
        left = _left(whole, rejected, correct, sampling) if proposed else _without(whole, rejected)
        last = _sample(left, sampling.last_coins)
        tokens = torch.where(depth < correct.unsqueeze(1), draft, last.unsqueeze(1))
    kept = depth <= correct.unsqueeze(1)
    accepted.tokens.copy_(tokens.where(kept, 0).flatten())
    accepted.places.copy_(torch.arange(bs * width, device=chains.device).view(bs, width).where(kept, -1))
    accepted.lens.copy_(correct + 1)
    if observation is not None:
        confidence, requests, model = observation
        observe_acceptance_torch(confidence, requests, lens, accepted.lens, model)


def _lucky(chance: torch.Tensor, draft: torch.Tensor, sampling: ChainSampling) -> torch.Tensor:
    """Which draft tokens ``[bs, N]`` their coins accept, by the target's probabilities of them."""
    if sampling.proposals is None:
        return (sampling.coins < chance / sampling.total) | (chance >= sampling.single)
    drafted = draft[:, :-1].clamp(min=0)
    places = drafted if sampling.draft_places is None else sampling.draft_places[drafted].long()
    proposed = sampling.proposals.gather(2, places.clamp(min=0).unsqueeze(2)).squeeze(2).where(places >= 0, 0.0)
    return sampling.coins * torch.nn.functional.pad(proposed, (0, 1)) < chance


def _left(p: torch.Tensor, rejected: torch.Tensor, depth: torch.Tensor, sampling: ChainSampling) -> torch.Tensor:
    """What of p ``[bs, V]`` was not proposed, where a token was rejected; p itself where none was, or none is left."""
    proposals, places = sampling.proposals, sampling.draft_places
    if proposals is None:
        raise ValueError("nothing was proposed")
    bs, depths, _ = proposals.shape
    q = proposals[torch.arange(bs, device=p.device), depth.clamp(max=depths - 1)].double()
    if places is not None:
        q = q[:, places.clamp(min=0)].where(places >= 0, 0.0)
    left = torch.where(rejected.unsqueeze(1) >= 0, (p - q).clamp(min=0), p)
    return torch.where(left.sum(1, keepdim=True) > 0, left, p)


def _without(p: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Rows ``[bs, V]`` without the ``rejected`` token of each; -1 rejects none."""
    return p.scatter(1, rejected.clamp(min=0).unsqueeze(1), 0.0).where(rejected.unsqueeze(1) >= 0, p)


def _sample(p: torch.Tensor, coins: torch.Tensor) -> torch.Tensor:
    """A token for each row ``[bs, V]`` of weights by the coins."""
    below = p.cumsum(1) <= coins.double().unsqueeze(1) * p.sum(1, keepdim=True)
    likely = torch.arange(p.shape[1], device=p.device).where(p > 0, 0).amax(1)
    return torch.minimum(below.sum(1), likely)  # rounding may leave the coin behind the last token
