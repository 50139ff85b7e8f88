"""Chains after a verification on a GPU, to be accepted by our kernels and by SGLang's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch

from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, accept_chains
from tessera_kernels.ops.accept.sampling_cutoffs import SamplingLimits, sampling_cutoffs

VOCABULARY = 128_256
How = Literal["greedy", "temperature", "truncated"]
"""How tokens are sampled; the last by temperature, top-k and top-p."""
Renormalize = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
HOWS: tuple[How, ...] = get_args(How)


def _operators() -> tuple[Callable[..., None], Callable[..., None]]:
    """Of sampled and of greedy verification; they left ``sgl_kernel`` when SGLang came to compile them itself."""
    try:
        from sglang.kernels.ops.speculative.sampling import tree_speculative_sampling_target_only as sampled
        from sglang.kernels.ops.speculative.tree import verify_tree_greedy as greedy
    except ImportError:
        from sgl_kernel import tree_speculative_sampling_target_only as sampled
        from sgl_kernel import verify_tree_greedy as greedy
    return sampled, greedy


class VerifiedChains:
    """Logits of chains that are verified in full, whose drafts are often right.

    Args:
        bs: chains.
        width: tokens of each.
        renormalized: SGLang's functions for top-k and top-p, from probabilities ``[n, V]`` and limits ``[n]``.
        steep: whether probabilities fall like the rank to the power of -1.5, as those of text about do, so that few
            tokens matter. Otherwise rows are nearly flat, the worst case of top-k and top-p.
    """

    def __init__(
        self, bs: int, width: int, renormalized: tuple[Renormalize, Renormalize], *, steep: bool = False
    ) -> None:
        self._renormalized = renormalized
        rng = torch.Generator("cuda").manual_seed(bs + width)
        self.bs, self.width = bs, width
        shape = bs * width, VOCABULARY
        if steep:
            self.logits = 1.5 * torch.empty(shape, device="cuda").exponential_(generator=rng)
        else:
            self.logits = 2 * torch.randn(shape, device="cuda", generator=rng)
        draft = torch.randint(VOCABULARY, (bs, width), device="cuda", generator=rng)
        right = torch.rand(bs * width, 1, device="cuda", generator=rng) < 0.8
        self.logits.scatter_add_(1, draft.roll(-1, 1).view(-1, 1), (20.0 if steep else 13.0) * right)
        self.chains = draft
        self.indptr = torch.arange(bs + 1, dtype=torch.int32, device="cuda") * width
        # SGLang's drafts come with these links.
        self._index = torch.arange(bs * width, device="cuda").view(bs, width)
        self._following = torch.arange(1, width + 1, device="cuda").repeat(bs, 1)
        self._following[:, -1] = -1
        self._siblings = torch.full_like(self._index, -1)
        self.temperatures = 0.5 + torch.rand(bs, 1, device="cuda", generator=rng)
        self.coins = torch.rand(bs, width, device="cuda", generator=rng)
        self.last_coins = torch.rand(bs, device="cuda", generator=rng)
        self.top_ks = torch.randint(1, 200, (bs,), dtype=torch.int32, device="cuda", generator=rng)
        self.top_ps = 0.5 + torch.rand(bs, device="cuda", generator=rng) / 2

    def ours(self, how: How) -> AcceptedChains:
        """By `accept_chains`."""
        accepted = AcceptedChains.create(self.bs, self.width, self.logits.device)
        sampling = None if how == "greedy" else ChainSampling(self.temperatures, self.coins, self.last_coins)
        if sampling is not None and how == "truncated":
            cutoffs = torch.empty(len(self.logits), device="cuda")
            limits = SamplingLimits(self.temperatures, self.top_ks, self.top_ps, torch.zeros_like(self.top_ps))
            sampling_cutoffs(self.logits, self.indptr, limits, self.width, cutoffs)
            sampling = sampling._replace(cutoffs=cutoffs)
        accept_chains(self.logits, self.indptr, self.chains, sampling, accepted)
        return accepted

    def sglangs(self, how: How) -> AcceptedChains:
        """By the operators that ``eagle_sample`` calls."""
        tree_speculative_sampling_target_only, verify_tree_greedy = _operators()
        bs, width = self.bs, self.width
        tokens = torch.zeros(bs * width, dtype=torch.int32, device="cuda")
        places = torch.full((bs, width), -1, dtype=torch.int32, device="cuda")
        correct = torch.empty(bs, dtype=torch.int32, device="cuda")
        common = {
            "predicts": tokens,
            "accept_index": places,
            "accept_token_num": correct,
            "candidates": self.chains,
            "retrive_index": self._index,
            "retrive_next_token": self._following,
            "retrive_next_sibling": self._siblings,
        }
        if how == "greedy":
            verify_tree_greedy(**common, target_predict=self.logits.argmax(1).view(bs, width))
        else:
            p = (self.logits / self.temperatures.repeat_interleave(width, 0)).softmax(1)
            if how == "truncated":
                top_k, top_p = self._renormalized
                # In the other order SGLang takes p of the k likeliest; its sampler, and we, p of all.
                p = top_p(p, self.top_ps.repeat_interleave(width))
                p = top_k(p, self.top_ks.repeat_interleave(width))
            p = p.view(bs, width, -1)
            tree_speculative_sampling_target_only(
                **common,
                uniform_samples=self.coins,
                uniform_samples_for_final_sampling=self.last_coins,
                target_probs=p,
                draft_probs=torch.zeros_like(p),
                threshold_single=1.0,
                threshold_acc=1.0,
                deterministic=True,
            )
        return AcceptedChains(tokens, places, correct + 1)
