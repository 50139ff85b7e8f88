"""Rejection sampling, whose drafts are samples: what is verified does not depend on the token that was drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_utils import select_top_k_tokens

from tessera_patches.tilespec_chains import chaining, continue_chain, pick_likeliest
from tessera_patches.tilespec_draft_vocabulary import draft_places, vocabulary
from tessera_patches.tilespec_drafts import scored_chains
from tessera_patches.tilespec_proposals import noted, propose

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


def test_a_draft_model_that_knows_some_tokens() -> None:
    """Each token that it knows stands at its own number's place; the others nowhere."""
    config = SimpleNamespace(model_config=SimpleNamespace(vocab_size=6))
    drafts = SimpleNamespace(hot_token_id=torch.tensor([4, 0, 5]), target_worker=config)
    places = draft_places(drafts)
    assert places is not None
    assert places.dtype == torch.int32
    assert (places.tolist(), vocabulary(drafts)) == ([1, -1, -1, -1, 0, 2], 3)
    drafts.hot_token_id = None
    assert (draft_places(drafts), vocabulary(drafts)) == (None, 6)


def test_a_sampled_token_comes_with_the_greatest_probability() -> None:
    """Of what it was sampled from, at the request's temperature; and at its depth among the draft's confidences."""
    logits, temperatures = torch.tensor([[2.0, 0.0, 1.0]]).repeat(3000, 1), torch.full((3000, 1), 0.8)
    expected = (logits / temperatures).softmax(1)
    confidences = torch.zeros(3000, 2)
    for depth in range(2):
        with noted.holding(lambda rows, depth=depth: confidences[:rows, depth]):  # type: ignore[misc]
            q, sure, token = propose(print, logits, temperatures)
        torch.testing.assert_close(q, expected)
        torch.testing.assert_close(sure, expected.amax(1, keepdim=True))
        often = token.flatten().bincount(minlength=3) / 3000
        assert (often - expected[0]).abs().max() < 0.04
    torch.testing.assert_close(confidences, expected[:, :1].expand(-1, 2))
    assert propose(print, logits, temperatures)[1].shape == (3000, 1)


@pytest.mark.parametrize("kept", [True, False])
def test_a_likeliest_token_comes_with_its_probability(kept: bool) -> None:
    """What ``draft_topk1_postprocess`` does, and the confidence at its depth; elsewhere that function itself."""
    logits, positions = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0]]), torch.tensor([5, 9])
    tokens, confidences = torch.full((2, 4), -1), torch.zeros(2, 3)
    given: tuple[Any, ...] = (logits, positions, tokens, 1) if kept else (logits, positions)
    with noted.holding(lambda rows: confidences[:rows, 2]):
        sure, picked = pick_likeliest(print, *given)
    assert picked.tolist() == [[0], [2]]
    assert positions.tolist() == [6, 10]
    assert tokens.tolist() == ([[-1, 0, -1, -1], [-1, 2, -1, -1]] if kept else [[-1] * 4] * 2)
    expected = logits.softmax(1).amax(1)
    torch.testing.assert_close(sure.flatten(), expected)
    torch.testing.assert_close(confidences, torch.stack([torch.zeros(2), torch.zeros(2), expected], 1))
    assert pick_likeliest(lambda *told: told, *given) == (logits, positions, *((tokens, 1) if kept else (None, 0)))


@pytest.mark.parametrize("step", [0, 2])
def test_a_chain_is_continued_by_its_last_token(step: int) -> None:
    """As SGLang chooses it among one; branches are left to SGLang."""
    tokens, states, sure = torch.tensor([[7], [3]]), torch.randn(2, 4), torch.rand(2, 1)
    given: tuple[Any, ...] = (step, sure, tokens, states, torch.rand(2, 1), 1)
    with torch.compiler.set_stance("force_eager"):  # to compile it takes a minute
        ids, carried, _, (_, kept, _) = select_top_k_tokens(*given)
    with chaining.holding(True):
        found = continue_chain(select_top_k_tokens, *given)
    assert torch.equal(found[0], ids)
    assert torch.equal(found[1], carried)
    assert torch.equal(found[3][1], kept)
    with chaining.holding(False), torch.compiler.set_stance("force_eager"):
        _, _, _, (scores, _, parents) = continue_chain(select_top_k_tokens, *given)
    assert scores is not None
    assert parents is not None
