"""Cutting drafts off does not change what is sampled: chi-squared tests on a small vocabulary, against the target.

The rules of acceptance (`tessera_kernels.ops.accept.accept_chains.accept_chains`):

- target-only: drafts are arg-max tokens; one is accepted with the target's probability of it, else the target without
  it is sampled;
- rejection (Leviathan et al., arXiv 2211.17192): drafts are sampled from q; one is accepted with min(1, p / q), else
  max(p - q, 0) is sampled.

Where the drafts end, or are cut off, the target is sampled as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera.tilespec import calibration
from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, accept_chains
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan, allocate_verify
from tessera_patches.tilespec.draft.proposals import one_hot_probs
from tessera_testing.chances import chi_squared

VOCABULARY, DEPTHS, OUTPUT = 5, 3, 2
REQUESTS = 30_000
STAND_IN = 2
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From q ``[n, V]`` and the drafted token ``[n]`` to a confidence ``[n]``."""


def largest(q: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Looks at what was known before the token was sampled."""
    return q.amax(1)


def own(q: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Looks at the sampled token: the rule that is known to be biased."""
    return q.gather(1, token.unsqueeze(1)).squeeze(1)


class World:
    """A target and a draft in which the next token depends on the last one.

    Attributes:
        stand_ins: what is said of every other request's first draft token, which nobody sampled then: ``[V]``.
    """

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        logits = torch.randn(2, VOCABULARY, VOCABULARY, generator=self.rng)
        logits[1] += 0.7 * logits[0]  # the draft resembles the target
        self.p, self.q = logits.double().softmax(2)
        self.stand_ins: torch.Tensor | None = None

    def sample(self, weights: torch.Tensor) -> torch.Tensor:
        """One token for each row of weights ``[n, V]``."""
        return torch.multinomial(weights, 1, generator=self.rng).squeeze(1)

    def coins(self, *size: int) -> torch.Tensor:
        """Uniform in 0 to 1."""
        return torch.rand(*size, generator=self.rng, dtype=torch.float64)

    def draft(self, last: torch.Tensor, sampled: bool, score: Score) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts ``[n, DEPTHS]`` and their confidences."""
        tokens, scores = [last], []
        for _ in range(DEPTHS):
            q = self.q[tokens[-1]]
            tokens.append(self.sample(q) if sampled else q.argmax(1))
            scores.append(score(q, tokens[-1]))
        return torch.stack(tokens[1:], 1), torch.stack(scores, 1).float()

    def step(self, last: torch.Tensor, sampled: bool, score: Score) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft, cut, verify: accepted tokens and one more ``[n, DEPTHS + 1]``, and how many they are."""
        drafts, confidence = self.draft(last, sampled, score)
        plan = allocate(confidence)
        chains = torch.cat([last.unsqueeze(1), drafts], 1)
        if self.stand_ins is not None:
            chains[::2, 1] = STAND_IN
        return self.accept(chains, plan, sampled)

    def accept(self, chains: torch.Tensor, plan: VerifyPlan, sampled: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows that are not verified are not there."""
        verified = torch.arange(DEPTHS + 1) < plan.verify_lens.unsqueeze(1)
        coins = self.coins(*chains.shape).float(), self.coins(len(chains)).float()
        accepted = AcceptedChains.create(len(chains), DEPTHS + 1, chains.device)
        proposals = self.q[chains[:, :-1]].float() if sampled else None
        if proposals is not None and self.stand_ins is not None:
            proposals[::2, 0] = self.stand_ins
        sampling = ChainSampling(torch.ones(len(chains)), *coins, proposals=proposals)
        accept_chains(self.p[chains[verified]].log(), plan.qo_indptr, chains, sampling, accepted)
        return accepted.tokens.view_as(chains).long(), accepted.accept_lens.long()

    def run(self, sampled: bool, score: Score) -> torch.Tensor:
        """A start and the first OUTPUT tokens of each request, ``[REQUESTS, 1 + OUTPUT]``, in as many steps."""
        last = torch.arange(REQUESTS) % VOCABULARY
        length = torch.ones_like(last)
        tokens = torch.zeros(REQUESTS, 1 + OUTPUT, dtype=torch.int64)
        tokens[:, 0] = last
        for _ in range(OUTPUT):
            out, count = self.step(last, sampled, score)
            for column in range(DEPTHS + 1):
                here = (column < count) & (length <= OUTPUT)
                tokens[here, length[here]] = out[here, column]
                last = torch.where(here, out[:, column], last)
                length += here.long()
        return tokens

    def p_value(self, tokens: torch.Tensor) -> float:
        """Pearson's chi-squared test of start and outputs together against the target's own distribution."""
        law, places = torch.full((VOCABULARY,), 1 / VOCABULARY, dtype=torch.float64), tokens[:, 0]
        for column in range(1, 1 + OUTPUT):
            law = (law.view(-1, VOCABULARY, 1) * self.p).flatten()
            places = places * VOCABULARY + tokens[:, column]
        found = torch.bincount(places, minlength=len(law))
        return chi_squared(found, law * len(tokens), known=VOCABULARY)  # how often each start came was no chance


def allocate(confidence: torch.Tensor) -> VerifyPlan:
    """What is verified, as a server gives them: six draft tokens for ten requests, where they promise most."""
    table = torch.from_numpy(calibration.Calibration(DEPTHS).logits())
    model = AcceptanceModel.create(torch.from_numpy(calibration.bin_edges()), table, 1, "cpu")
    plan = VerifyPlan.create(len(confidence), DEPTHS, DEPTHS, "cpu")
    requests = torch.zeros(len(confidence), dtype=torch.int64)
    allocate_verify(confidence, requests, model, int(1.6 * len(confidence)), plan)
    assert 1 < plan.verify_lens.unique().numel() <= DEPTHS + 1
    return plan


@pytest.mark.parametrize(("sampled", "score"), [(False, largest), (True, largest)])
def test_cutting_keeps_the_distribution(sampled: bool, score: Score) -> None:
    """Target-only, whose drafts are no samples; rejection, with a score that does not look at the sampled token."""
    world = World(seed=1)
    assert world.p_value(world.run(sampled, score)) > 1e-3


def test_the_biased_rule_is_found() -> None:
    """Negative control: cut by the sampled token's own q, rejection sampling is not the target any more."""
    world = World(seed=1)
    assert world.p_value(world.run(sampled=True, score=own)) < 1e-12


@pytest.mark.parametrize("known", [True, False])
def test_tokens_that_nobody_sampled(known: bool) -> None:
    """After a plain step a token stands in for the first draft: it was proposed for certain, and else it is found."""
    world = World(seed=1)
    tokens = torch.tensor([[STAND_IN]])
    world.stand_ins = one_hot_probs(tokens, VOCABULARY)[0] if known else world.q[0].float()
    p_value = world.p_value(world.run(sampled=True, score=largest))
    assert p_value > 1e-3 if known else p_value < 1e-12


def test_the_bias_of_two_tokens() -> None:
    """Why: with q = (0.75, 0.25) and p = (0.5, 0.5), verified only where q(x) is large, x = 0 comes in 62.5 %.

    It is drafted at 0.75 and kept at 2/3, else the other one comes: 0.5. Token 1, drafted at 0.25, would have been
    kept; as it is not verified, p is sampled instead, which gives half of it away: 0.125.
    """
    rng = torch.Generator().manual_seed(1)
    n = 400_000
    token = (torch.rand(n, generator=rng) >= 0.75).long()
    accepted = torch.rand(n, generator=rng) < 0.5 / 0.75
    fresh = (torch.rand(n, generator=rng) >= 0.5).long()
    result = torch.where(token == 0, torch.where(accepted, 0, 1), fresh)
    assert float((result == 0).double().mean()) == pytest.approx(0.625, abs=0.004)
