"""Chains after a verification on a GPU, to be accepted by our kernels and by SGLang's operators."""

from __future__ import annotations

import torch

from tessera_kernels.accept_chains import AcceptedChains, ChainSampling, accept_chains

VOCABULARY = 128_256


class VerifiedChains:
    """Logits of chains that are verified in full, whose drafts are often right.

    Args:
        bs: chains.
        width: tokens of each.
    """

    def __init__(self, bs: int, width: int) -> None:
        rng = torch.Generator("cuda").manual_seed(bs + width)
        self.bs, self.width = bs, width
        self.logits = 2 * torch.randn(bs * width, VOCABULARY, device="cuda", generator=rng)
        draft = torch.randint(VOCABULARY, (bs, width), device="cuda", generator=rng)
        right = torch.rand(bs * width, 1, device="cuda", generator=rng) < 0.8
        self.logits.scatter_add_(1, draft.roll(-1, 1).view(-1, 1), 13.0 * right)
        self.chains = draft
        self.indptr = torch.arange(bs + 1, dtype=torch.int32, device="cuda") * width
        self.temperatures = 0.5 + torch.rand(bs, 1, device="cuda", generator=rng)
        self.coins = torch.rand(bs, width, device="cuda", generator=rng)
        self.last_coins = torch.rand(bs, device="cuda", generator=rng)

    def ours(self, *, sampled: bool) -> AcceptedChains:
        """By `accept_chains`."""
        accepted = AcceptedChains.create(self.bs, self.width, self.logits.device)
        sampling = ChainSampling(self.temperatures, self.coins, self.last_coins) if sampled else None
        accept_chains(self.logits, self.indptr, self.chains, sampling, accepted)
        return accepted

    def sglangs(self, *, sampled: bool) -> AcceptedChains:
        """By the operators that ``eagle_sample`` calls."""
        from sgl_kernel import tree_speculative_sampling_target_only, verify_tree_greedy

        bs, width = self.bs, self.width
        index = torch.arange(bs * width, device="cuda").view(bs, width)
        following = torch.arange(1, width + 1, device="cuda").repeat(bs, 1)
        following[:, -1] = -1
        tokens = torch.zeros(bs * width, dtype=torch.int32, device="cuda")
        places = torch.full((bs, width), -1, dtype=torch.int32, device="cuda")
        correct = torch.empty(bs, dtype=torch.int32, device="cuda")
        common = {
            "predicts": tokens,
            "accept_index": places,
            "accept_token_num": correct,
            "candidates": self.chains,
            "retrive_index": index,
            "retrive_next_token": following,
            "retrive_next_sibling": torch.full_like(index, -1),
        }
        if sampled:
            scaled = self.logits / self.temperatures.repeat_interleave(width, 0)
            p = scaled.softmax(1).view(bs, width, -1)
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
        else:
            verify_tree_greedy(**common, target_predict=self.logits.argmax(1).view(bs, width))
        return AcceptedChains(tokens, places, correct + 1)
