"""What our relay keeps of each step, against SGLang's own `FutureMap`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload
from sglang.srt.speculative import spec_utils
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from tessera_patches.tilespec import relay as tilespec_relay

BUFFERS = ("output_tokens_buf", "topk_p_buf", "topk_index_buf", "hidden_states_buf", "draft_probs_buf")
POOL, HIDDEN, VOCABULARY = 12, 16, 10


class Counted:
    """SGLang's ``stash``, and how often it ran."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any) -> None:
        """Run it."""
        self.calls += 1
        FutureMap.stash(*args)


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], FutureMap]:
    """Makes relays on the CPU, which keep states or not; ours takes the CPU for a GPU."""
    monkeypatch.setattr(tilespec_relay, "_on_gpu", lambda _: True)

    def made(states: bool) -> FutureMap:
        monkeypatch.setattr(spec_utils, "spec_need_hidden_states", lambda: states)
        pool: Any = SimpleNamespace(req_to_token=torch.zeros(POOL, 1))
        relay = FutureMap(torch.device("cpu"), SpeculativeAlgorithm.EAGLE, pool)
        relay.output_tokens_buf.zero_()
        return relay

    return made


def payload(bs: int, topk: int = 1, states: bool = True, probabilities: bool = False, seed: int = 0) -> RelayPayload:
    """What a verification of a batch leaves."""
    rng = torch.Generator().manual_seed(seed)
    return RelayPayload(
        bonus_tokens=torch.randint(0, 1000, (bs,), generator=rng).int(),
        topk_p=torch.rand(bs, topk, generator=rng),
        topk_index=torch.randint(0, 1000, (bs, topk), generator=rng),
        hidden_states=torch.randn(bs, HIDDEN, generator=rng).bfloat16() if states else None,
        draft_probs=torch.rand(bs, VOCABULARY, generator=rng) if probabilities else None,
    )


def both(
    relay: Callable[[bool], FutureMap], states: bool, payloads: list[RelayPayload], keeps: bool | None = None
) -> int:
    """Give the same payloads to SGLang's relay and to ours, compare what they keep; how often ours asked SGLang's."""
    theirs, ours = (relay(states if keeps is None else keeps) for _ in range(2))
    counted = Counted()
    everyone = torch.arange(POOL)
    for place, left in enumerate([payloads[0], *payloads]):
        requests = torch.randperm(POOL, generator=torch.Generator().manual_seed(place))[: len(left.bonus_tokens)]
        if place == 0:  # all rows are written once, or those of torch.empty would be compared
            requests = everyone[: len(left.bonus_tokens)]
        FutureMap.stash(theirs, requests, left)
        tilespec_relay.stash(counted, ours, requests, left)
        for name in BUFFERS:
            mine, other = getattr(ours, name, None), getattr(theirs, name, None)
            if mine is not None and other is not None:
                assert torch.equal(mine, other), name
            assert (mine is None) == (other is None), name
    return counted.calls


@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("probabilities", [True, False])
def test_it_keeps_what_sglangs_keeps(
    relay: Callable[[bool], FutureMap], topk: int, states: bool, probabilities: bool
) -> None:
    """With SGLang's own code it makes the buffers, and no more."""
    payloads = [payload(bs, topk, states, probabilities, bs) for bs in (POOL, 3, 1, 7)]
    assert both(relay, states, payloads) == 1


def test_states_that_nobody_reads_are_not_kept(relay: Callable[[bool], FutureMap]) -> None:
    """STANDALONE's draft model is one that takes none."""
    assert both(relay, True, [payload(POOL), payload(3)], keeps=False) == 1


@pytest.mark.parametrize(
    "odd",
    [
        lambda one: {"topk_p": one.topk_p.half()},
        lambda one: {"topk_p": one.topk_p.repeat(1, 2)[:, ::2]},
        lambda one: {"topk_index": one.topk_index.int()},
        lambda one: {"hidden_states": one.hidden_states.float()},
        lambda one: {"bonus_tokens": one.bonus_tokens.short()},
        lambda one: {"dsa_topk_indices": one.topk_index.int()},
    ],
)
def test_what_is_not_plain_is_left_to_sglang(
    relay: Callable[[bool], FutureMap], odd: Callable[[RelayPayload], dict[str, Any]]
) -> None:
    """Other dtypes, tensors with gaps, and what we know nothing of."""
    one = payload(3)
    for name, value in odd(one).items():
        setattr(one, name, value)
    assert both(relay, True, [payload(POOL), one, payload(2)]) == 2


def test_an_empty_batch_writes_nothing(relay: Callable[[bool], FutureMap]) -> None:
    """A rank without requests."""
    ours, counted = relay(True), Counted()
    tilespec_relay.stash(counted, ours, torch.arange(POOL), payload(POOL))
    tilespec_relay.stash(counted, ours, torch.arange(0), payload(0))
    assert counted.calls == 2


def test_without_a_gpu_it_is_sglangs(relay: Callable[[bool], FutureMap], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time."""
    monkeypatch.undo()
    monkeypatch.setattr(spec_utils, "spec_need_hidden_states", lambda: True)
    pool: Any = SimpleNamespace(req_to_token=torch.zeros(POOL, 1))
    ours, counted = FutureMap(torch.device("cpu"), SpeculativeAlgorithm.EAGLE, pool), Counted()
    for bs in (POOL, 3):
        tilespec_relay.stash(counted, ours, torch.arange(bs), payload(bs))
    assert counted.calls == 2


@pytest.mark.parametrize("states", [True, False])
def test_it_is_warmed_up_with_the_tokens_of_prefills_and_of_verifications(
    monkeypatch: pytest.MonkeyPatch, states: bool
) -> None:
    """Else a kernel would be compiled while the first request waits."""
    seen = []
    monkeypatch.setattr(tilespec_relay, "stash_drafts", lambda drafts, *_: seen.append(drafts.tokens.dtype))
    left = payload(3, states=states)
    drafts = EagleDraftInput(
        topk_p=left.topk_p,
        topk_index=left.topk_index,
        hidden_states=left.hidden_states,
        bonus_tokens=left.bonus_tokens,
    )
    tilespec_relay.warm_up(drafts)
    assert seen == [torch.int32, torch.int64]
