"""Drafts that are verified in part, accepted from packed logits: as SGLang's ``eagle_sample`` does from padded ones."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tessera.tilespec.penalties import Penalties, RecentTokens
from tessera_kernels import cpu
from tessera_kernels.ops.verify.allocate_verify import VerifyPlan
from tessera_kernels.ops.verify.pack_verify import VerifyRows
from tessera_testing.reference import truncate

BATCH, WIDTH, VOCABULARY = 60, 4, 2  # every second draft is right
PENALTIES, BIAS, GRAMMAR = "penalties", "bias", "grammar"


@pytest.fixture(scope="module")
def modules() -> tuple[Any, Any, Any]:
    """SGLang's function and ours: imported late, for SGLang takes seconds."""
    cpu.enable()
    from sglang.srt.speculative import eagle_utils

    from tessera_patches.tilespec import entry as tilespec
    from tessera_patches.tilespec import step

    return eagle_utils, tilespec, step


def chains_of(tokens: torch.Tensor, lens: torch.Tensor) -> SimpleNamespace:
    """An ``EagleVerifyInput`` of chains, each ending after its length."""
    nodes = torch.arange(BATCH * WIDTH).view(BATCH, WIDTH)
    following = torch.arange(1, WIDTH + 1).repeat(BATCH, 1)
    return SimpleNamespace(
        draft_token=tokens.flatten(),
        draft_token_num=WIDTH,
        max_tree_depth=WIDTH,
        tree_topk=1,
        retrieve_index=nodes,
        retrieve_next_token=following.where(following < lens.unsqueeze(1), -1),
        retrieve_next_sibling=torch.full_like(nodes, -1),
    )


def accept_on_cpu(monkeypatch: pytest.MonkeyPatch, eagle_utils: Any) -> None:
    """Another test of this process may have imported SGLang before it was told of the CPU."""
    on_cpu = {
        "_is_cuda": False,
        "_is_cpu": True,
        "sgl_verify_tree_greedy_cpu": torch.ops.sgl_kernel.verify_tree_greedy_cpu,
        "get_spec": lambda: SimpleNamespace(speculative_use_rejection_sampling=False),
    }
    for module in (eagle_utils, sys.modules[eagle_utils.verify_tree_greedy_func.__module__]):
        for name, value in on_cpu.items():
            monkeypatch.setattr(module, name, value, raising=False)


@pytest.mark.parametrize("added_parts", [(PENALTIES,), (BIAS,), (GRAMMAR,), (PENALTIES, BIAS, GRAMMAR), ()])
def test_what_requests_add_to_logits(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[Any, Any, Any], added_parts: tuple[str, ...]
) -> None:
    """Biases are each request's own, penalties and masks each token's, whatever part of a draft is verified; greedy."""
    eagle_utils, tilespec, step = modules
    from sglang.srt.constrained.base_grammar_backend import GrammarMask
    from sglang.srt.constrained.outlines_backend import OutlinesGrammar

    accept_on_cpu(monkeypatch, eagle_utils)
    rng = torch.Generator().manual_seed(len(added_parts))
    lens = torch.randint(1, WIDTH + 1, (BATCH,), generator=rng)
    verified = torch.arange(WIDTH) < lens.unsqueeze(1)
    logits = torch.randn(BATCH * WIDTH, VOCABULARY, generator=rng)
    bias = torch.randn(BATCH, VOCABULARY, generator=rng) if BIAS in added_parts else None
    penalties = penalties_of(rng) if PENALTIES in added_parts else None
    requests = torch.arange(BATCH)
    batch = greedy_batch(lens, bias)
    sampling = batch.sampling_info
    # Outlines' one, which is applied on a CPU too: of each token one follower at most is left out.
    left_out = torch.randint(-1, VOCABULARY, (BATCH * WIDTH, 1), generator=rng) == torch.arange(VOCABULARY)
    mask = GrammarMask(OutlinesGrammar, left_out) if GRAMMAR in added_parts else None
    tokens = torch.randint(VOCABULARY, (BATCH, WIDTH), generator=rng)
    recent = RecentTokens(BATCH, WIDTH)
    before = recent.of(requests)
    padded_output = SimpleNamespace(next_token_logits=logits.clone())
    if penalties is not None:  # SGLang itself would have the same for all tokens of a request
        padded_rows = requests.repeat_interleave(WIDTH), torch.arange(WIDTH).repeat(BATCH)
        penalties.penalize_drafts(padded_output.next_token_logits, *padded_rows, lens, tokens, before)
    expected = eagle_utils.eagle_sample(chains_of(tokens, lens), batch, padded_output, mask)

    plan = VerifyPlan.create(BATCH, WIDTH - 1, WIDTH - 1, "cpu")
    plan.verify_lens[:BATCH] = lens
    plan.qo_indptr[0] = 0
    plan.qo_indptr[1 : BATCH + 1] = lens.cumsum(0)
    total = int(lens.sum())
    ours = chains_of(tokens, torch.full((BATCH,), WIDTH))
    rows = VerifyRows(*(torch.zeros(BATCH * WIDTH, dtype=torch.int64) for _ in range(3)))
    step.Step(plan.qo_indptr, plan, total, total, padded=rows, recent=recent).attach(ours)
    sampling.tessera_penalties = penalties
    packed = torch.cat([logits[verified.flatten()], torch.full((9, VOCABULARY), torch.nan)])
    output = SimpleNamespace(next_token_logits=packed, hidden_states=None)
    found = tilespec.sample(eagle_utils.eagle_sample, ours, batch, output, mask)

    assert found[1].tolist() == expected[1].tolist()
    assert len(set(found[1].tolist())) > 2
    assert found[2].tolist() == expected[2].tolist()
    places = found[2].flatten()
    places = places[places >= 0].long()
    assert found[0][places].tolist() == expected[0][places].tolist()


def greedy_batch(lens: torch.Tensor, bias: torch.Tensor | None = None) -> SimpleNamespace:
    """SGLang's batch of greedy requests, as far as it is read."""
    sampling = SimpleNamespace(
        is_all_greedy=True, acc_additive_penalties=None, acc_scaling_penalties=None, logit_bias=bias
    )
    return SimpleNamespace(
        device="cpu",
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        seq_lens=lens,
        req_pool_indices=torch.arange(BATCH),
        sampling_info=sampling,
        return_logprob=False,
        input_ids=None,
    )


def test_an_acceptance_that_sglang_simulates_is_real(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[Any, Any, Any]
) -> None:
    """With SGLANG_SIMULATE_ACC_LEN, SGLang accepts as many drafts of each request; ours does not come there."""
    eagle_utils, tilespec, step = modules
    from sglang.srt.speculative import spec_utils

    accept_on_cpu(monkeypatch, eagle_utils)
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(BATCH * WIDTH, VOCABULARY, generator=rng)
    tokens = torch.randint(VOCABULARY, (BATCH, WIDTH), generator=rng)
    lens = torch.full((BATCH,), WIDTH)
    batch = greedy_batch(lens)

    def output() -> SimpleNamespace:
        return SimpleNamespace(next_token_logits=logits.clone(), hidden_states=None)

    real = eagle_utils.eagle_sample(chains_of(tokens, lens), batch, output(), None)
    monkeypatch.setattr(spec_utils, "SIMULATE_ACC_LEN", 2)
    simulated = eagle_utils.eagle_sample(chains_of(tokens, lens), batch, output(), None)
    assert len(set(simulated[1].tolist())) == 1 < len(set(real[1].tolist()))

    ours = chains_of(tokens, lens)
    offsets = torch.arange(0, BATCH * WIDTH + 1, WIDTH, dtype=torch.int32)
    step.Step(offsets, recent=RecentTokens(BATCH, WIDTH)).attach(ours)
    batch.sampling_info.tessera_penalties = None

    def never(*_: Any, **__: Any) -> None:
        pytest.fail("SGLang's acceptance was called")

    found = tilespec.sample(never, ours, batch, output(), None)
    assert found[1].tolist() == real[1].tolist()


def penalties_of(rng: torch.Generator) -> Penalties:
    """Of requests whose last token the host does not know."""
    ones = torch.ones(BATCH, 1)
    return Penalties(
        torch.randint(3, (BATCH, VOCABULARY), generator=rng).float(),
        torch.zeros(BATCH, dtype=torch.int64),
        torch.arange(BATCH) % 2,
        ones * 0.3,
        ones * 0.2,
        ones * 1.2,
        torch.zeros(BATCH, dtype=torch.int64),
        torch.zeros((BATCH, 0), dtype=torch.int64),
        torch.zeros((BATCH, 0)),
    )


@pytest.mark.parametrize("limits", [(3, 0.6, 0.0), (3, 1.0, 0.0), (2**30, 0.6, 0.0), (2**30, 1.0, 0.3), (3, 0.9, 0.3)])
def test_sglang_gets_trees_cut_as_its_sampler_would(
    modules: tuple[Any, Any, Any], limits: tuple[int, float, float]
) -> None:
    """After all that requests add to logits, once; and log-probabilities are taken of what was not cut."""
    _, tilespec, _ = modules
    bs, width, vocabulary = 5, 3, 11
    rng = torch.Generator().manual_seed(limits[0])
    logits, bias = (
        torch.randn(bs * width, vocabulary, generator=rng),
        torch.randn(bs, vocabulary, generator=rng),
    )
    warm = 0.5 + torch.rand(bs, 1, generator=rng)
    sampling = SimpleNamespace(
        is_all_greedy=False,
        need_top_k_sampling=limits[0] < vocabulary,
        need_top_p_sampling=limits[1] < 1,
        need_min_p_sampling=limits[2] > 0,
        temperatures=warm,
        top_ks=torch.full((bs,), limits[0], dtype=torch.int32),
        top_ps=torch.full((bs,), limits[1]),
        min_ps=torch.full((bs,), limits[2]),
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        logit_bias=bias,
    )
    batch = SimpleNamespace(seq_lens=torch.ones(bs), sampling_info=sampling, return_logprob=True)
    output = SimpleNamespace(next_token_logits=logits.clone(), hidden_states=None)
    seen = []

    def accept(verify_input: Any, batch: Any, output: Any, mask: Any) -> tuple[None, None, None]:
        left = batch.sampling_info
        assert not left.need_top_k_sampling
        assert not left.need_top_p_sampling
        assert left.logit_bias is mask is None
        seen.append((output.next_token_logits / left.temperatures.repeat_interleave(width, 0)).softmax(1))
        return None, None, None

    drafted = SimpleNamespace(draft_token_num=width, draft_token=torch.zeros(bs * width, dtype=torch.int64))
    tilespec.sample(accept, drafted, batch, output)
    added = logits + bias.repeat_interleave(width, 0)
    expected = truncate((added / warm.repeat_interleave(width, 0)).double().softmax(1).numpy(), *limits)
    np.testing.assert_allclose(seen[0].numpy(), expected, atol=1e-6)
    assert torch.equal(output.next_token_logits, added)
    assert batch.sampling_info is sampling
