"""Rejection sampling, whose drafts are samples: what is verified does not depend on the token that was drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_utils import per_step_draft_out_cache_loc
from sglang.srt.speculative.spec_utils import select_top_k_tokens

from tessera.tilespec.scores import Scores
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_patches.engine.workers import SELECTS_ROWS
from tessera_patches.tilespec.draft import first_tokens, proposals
from tessera_patches.tilespec.draft.chains import (
    argmax_with_confidence,
    contiguous_slots,
    continue_chain,
    drafts_chain,
)
from tessera_patches.tilespec.draft.drafts import ChainDraftWorker
from tessera_patches.tilespec.draft.first_tokens import FirstTokens
from tessera_patches.tilespec.draft.proposals import confidence_sink, sample_proposal
from tessera_patches.tilespec.draft.vocabulary import draft_ids, draft_vocab_size

PROPOSED = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
DRAWN = torch.tensor([[1], [2]])


def test_a_prompts_first_draft_is_as_sure_as_its_likeliest_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the one that was drawn, of which SGLang notes the probability."""
    monkeypatch.setattr(proposals, "samples_drafts", lambda: True)

    class Drafts:
        def _draft_extend_for_prefill(self, batch: Any) -> EagleDraftInput:
            seen.append(batch.sampling_info.temperatures)
            return EagleDraftInput(topk_p=PROPOSED.gather(1, DRAWN), topk_index=DRAWN, draft_probs=PROPOSED)

    seen: list[torch.Tensor] = []
    warm = torch.tensor([[0.8], [1.0]])
    requested = SimpleNamespace(temperatures=warm, top_ks=torch.tensor([50, 1]), is_any_greedy=True)
    drafts: Any = type("Ours", (ChainDraftWorker, Drafts), {})()
    found = drafts._draft_extend_for_prefill(SimpleNamespace(sampling_info=requested))
    assert torch.equal(found.topk_p, torch.tensor([[0.7], [0.6]]))
    assert torch.equal(found.topk_index, DRAWN)
    assert seen[0].flatten().tolist() == pytest.approx([0.8, 1e-4])  # of the greedy one the likeliest token is drawn
    assert requested.temperatures is warm


def test_a_draft_model_that_knows_some_tokens() -> None:
    """The id of each token that the draft model has; -1 for the others."""
    runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=6))
    worker = SimpleNamespace(model_runner=runner)
    drafts: Any = SimpleNamespace(hot_token_id=torch.tensor([4, 0, 5]), target_worker=worker)
    ids = draft_ids(drafts)
    assert ids is not None
    assert ids.dtype == torch.int32
    assert (ids.tolist(), draft_vocab_size(drafts)) == ([1, -1, -1, -1, 0, 2], 3)
    drafts.hot_token_id = None
    assert (draft_ids(drafts), draft_vocab_size(drafts)) == (None, 6)


def test_a_sampled_token_comes_with_the_greatest_probability() -> None:
    """Of what it was sampled from, at the request's temperature; and at its depth among the draft's confidences."""
    logits, temperatures = torch.tensor([[2.0, 0.0, 1.0]]).repeat(3000, 1), torch.full((3000, 1), 0.8)
    expected = (logits / temperatures).softmax(1)
    confidences = torch.zeros(3000, 2)
    for depth in range(2):
        with confidence_sink.set(lambda rows, depth=depth: confidences[:rows, depth]):  # type: ignore[misc]
            q, sure, token = sample_proposal(print, logits, temperatures)
        torch.testing.assert_close(q, expected)
        torch.testing.assert_close(sure, expected.amax(1, keepdim=True))
        often = token.flatten().bincount(minlength=3) / 3000
        assert (often - expected[0]).abs().max() < 0.04
    torch.testing.assert_close(confidences, expected[:, :1].expand(-1, 2))
    assert sample_proposal(print, logits, temperatures)[1].shape == (3000, 1)


@pytest.mark.parametrize("writes_tokens", [True, False])
def test_a_likeliest_token_comes_with_its_probability(writes_tokens: bool) -> None:
    """What ``draft_topk1_postprocess`` does, and the confidence at its depth; elsewhere that function itself."""
    logits, positions = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0]]), torch.tensor([5, 9])
    tokens, confidences = torch.full((2, 4), -1), torch.zeros(2, 3)
    given: tuple[Any, ...] = (logits, positions, tokens, 1) if writes_tokens else (logits, positions)
    with confidence_sink.set(lambda rows: confidences[:rows, 2]):
        sure, picked = argmax_with_confidence(print, *given)
    assert picked.tolist() == [[0], [2]]
    assert positions.tolist() == [6, 10]
    assert tokens.tolist() == ([[-1, 0, -1, -1], [-1, 2, -1, -1]] if writes_tokens else [[-1] * 4] * 2)
    expected = logits.softmax(1).amax(1)
    torch.testing.assert_close(sure.flatten(), expected)
    torch.testing.assert_close(confidences, torch.stack([torch.zeros(2), torch.zeros(2), expected], 1))
    assert argmax_with_confidence(lambda *arguments: arguments, *given) == (
        logits,
        positions,
        *((tokens, 1) if writes_tokens else (None, 0)),
    )


def test_first_tokens_come_with_their_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one read of the logits: SGLang's arg-max of them reads nothing, and is what was found."""
    monkeypatch.setattr(first_tokens, "samples_drafts", lambda: False)
    logits, states = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0]]), torch.rand(2, 4)
    padding = torch.full((1, 3), 9.0)

    class Runner:
        """Whose graph of three requests has the rows selected; since 0.5.20 its output is of the two alone."""

        def execute(self, _: Any) -> Any:
            captured = drafts.on_logits(torch.cat([logits, padding]))
            return SimpleNamespace(next_token_logits=captured, hidden_states=states)

    class Drafts:
        draft_runner = SimpleNamespace(forward=None)
        cuda_graph_runner_for_draft_extend = Runner()

        def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
            output = self.cuda_graph_runner_for_draft_extend.execute(batch)
            rows = slice(2) if SELECTS_ROWS else torch.tensor([0, 3])
            seen.append(output.next_token_logits[rows])
            states = output.hidden_states[rows]
            token = torch.argmax(seen[0], dim=-1, keepdim=True)
            assert token is seen[0].tokens
            batch_result.next_draft_input = EagleDraftInput(
                topk_p=torch.ones(2, 1), topk_index=token, hidden_states=states
            )

    seen: list[Any] = []
    drafts: Any = type("Ours", (FirstTokens, Drafts), {})()
    model = AcceptanceModel.create(torch.rand(3), torch.zeros(1, 4), 2, "cpu")
    drafts.scores = Scores(2, 1, "cpu", model)
    result: Any = SimpleNamespace()
    drafts._draft_extend_for_decode(SimpleNamespace(seq_lens=torch.tensor([4, 5])), result)
    assert torch.isnan(seen[0]).sum() == 0  # as SGLang looks at them where it is asked to
    assert result.next_draft_input.topk_index.tolist() == [[0], [2]]
    torch.testing.assert_close(result.next_draft_input.topk_p, logits.softmax(1).amax(1, keepdim=True))
    assert torch.equal(result.next_draft_input.hidden_states, states)
    assert type(result.next_draft_input.hidden_states) is torch.Tensor  # the next step's gather is one


def test_slots_of_each_draft_step_lie_in_a_row() -> None:
    """SGLang's function, with ours after it: the same slots."""
    slots = torch.arange(6)
    found = contiguous_slots(per_step_draft_out_cache_loc(slots, 2, 1, 3))
    assert found.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert all(step.is_contiguous() for step in found)


@pytest.mark.parametrize("step", [0, 2])
def test_a_chain_is_continued_by_its_last_token(step: int) -> None:
    """As SGLang chooses it among one; branches are left to SGLang."""
    tokens, states, sure = torch.tensor([[7], [3]]), torch.randn(2, 4), torch.rand(2, 1)
    given: tuple[Any, ...] = (step, sure, tokens, states, torch.rand(2, 1), 1)
    with torch.compiler.set_stance("force_eager"):  # to compile it takes a minute
        ids, carried, _, (_, parent_tokens, _) = select_top_k_tokens(*given)
    with drafts_chain.set(True):
        found = continue_chain(select_top_k_tokens, *given)
    assert torch.equal(found[0], ids)
    assert torch.equal(found[1], carried)
    assert torch.equal(found[3][1], parent_tokens)
    with drafts_chain.set(False), torch.compiler.set_stance("force_eager"):
        _, _, _, (scores, _, parents) = continue_chain(select_top_k_tokens, *given)
    assert scores is not None
    assert parents is not None
