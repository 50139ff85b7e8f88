"""Rejection sampling, whose drafts are samples: what is verified does not depend on the token that was drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput

from tessera_kernels.allocate_verify import VerifyPlan
from tessera_patches.tilespec import sample
from tessera_patches.tilespec_drafts import scored_chains
from tessera_patches.tilespec_verify import Cut

PROPOSED = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
DRAWN = torch.tensor([[1], [2]])


def test_a_prompts_first_draft_is_as_sure_as_its_likeliest_token() -> None:
    """Not as the one that was drawn, of which SGLang notes the probability."""

    class Drafts:
        server_args = SimpleNamespace(speculative_use_rejection_sampling=True)

        def _draft_extend_for_prefill(self, batch: Any) -> EagleDraftInput:
            seen.append(batch.sampling_info.temperatures)
            return EagleDraftInput(topk_p=PROPOSED.gather(1, DRAWN), topk_index=DRAWN, draft_probs=PROPOSED)

    seen: list[torch.Tensor] = []
    warm = torch.tensor([[0.8], [1.0]])
    asked = SimpleNamespace(temperatures=warm, top_ks=torch.tensor([50, 1]), is_any_greedy=True)
    drafts: Any = scored_chains(Drafts)()
    found = drafts._draft_extend_for_prefill(SimpleNamespace(sampling_info=asked))
    assert torch.equal(found.topk_p, torch.tensor([[0.7], [0.6]]))
    assert torch.equal(found.topk_index, DRAWN)
    assert seen[0].flatten().tolist() == pytest.approx([0.8, 1e-4])  # of the greedy one the likeliest token is drawn
    assert asked.temperatures is warm


def asked(width: int, draft_probs: torch.Tensor | None) -> tuple[SimpleNamespace, SimpleNamespace]:
    """A verification of two drafts, and the batch, which wants log-probabilities."""
    verify_input = SimpleNamespace(
        draft_token_num=width,
        draft_token=torch.zeros(2 * width, dtype=torch.int64),
        positions=None,
        retrieve_next_token=torch.arange(1, width + 1).repeat(2, 1),
        draft_probs=draft_probs,
    )
    sampling = SimpleNamespace(is_all_greedy=False)
    return verify_input, SimpleNamespace(seq_lens=torch.ones(2), return_logprob=True, sampling_info=sampling)


def sampled_by_sglang(verify_input: Any, batch: Any, logits: torch.Tensor) -> torch.Tensor:
    """What SGLang's acceptance is given as proposals."""
    output = SimpleNamespace(next_token_logits=logits, hidden_states=None)
    given: torch.Tensor = sample(lambda *args: (None, None, args[0].draft_probs), verify_input, batch, output)[2]
    return given


def test_sglangs_acceptance_ends_where_the_verification_did() -> None:
    """By a NaN (`tests/kernels/test_rejection_cut.py`), for it knows of no other end."""
    width, lens = 4, torch.tensor([1, 3], dtype=torch.int32)
    plan = VerifyPlan.create(2, width - 1, width - 1, "cpu")
    plan.verify_lens[:2] = lens
    plan.qo_indptr[:3] = torch.tensor([0, 1, 4])
    verify_input, batch = asked(width, torch.full((2, width - 1, 3), 0.5))
    cut = Cut(plan, 4, 4)
    cut.dense = (None, None, None)  # type: ignore[assignment]
    cut.attach(verify_input)
    given = sampled_by_sglang(verify_input, batch, torch.zeros(4, 3))
    assert given.isnan().any(2).tolist() == [[True, True, True], [False, False, True]]


def test_a_plain_step_has_no_proposals() -> None:
    """And SGLang's acceptance wants to be told so."""
    verify_input, batch = asked(1, None)
    assert sampled_by_sglang(verify_input, batch, torch.zeros(2, 3)).shape == (2, 0, 3)
