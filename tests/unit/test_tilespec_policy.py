"""The solver against brute force, hysteresis, exploration, trials."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tessera.tilespec import policy as policies
from tessera.tilespec.costs import KNOWN_AFTER, Curve
from tessera.tilespec.policy import Choice, LastSearch, Policy
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS
from tessera_testing.tilespec import chain, histogram_of, random_costs, simple_costs, survivals_of

CENTERS = (np.arange(HISTOGRAM_BINS) + 0.5) / HISTOGRAM_BINS


@pytest.fixture(autouse=True)
def _looks_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "SEARCH_INTERVAL", 1)


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_the_solver_is_exact(seed: int, bs: int) -> None:
    """No choice of steps, of verified prefixes of each request and of a graph that holds them is better."""
    rng = np.random.default_rng(seed)
    steps = [0, 1, 3]
    survival = CENTERS[np.sort(rng.integers(0, HISTOGRAM_BINS, (bs, 3)))[:, ::-1]]
    costs = random_costs(rng, steps, bs)
    kv = int(rng.integers(0, 10_000))

    best = 0.0
    around, uniform, ragged = costs.around_verify(bs), costs.verify_uniform(bs), costs.verify_ragged()
    assert costs.tiers is not None
    for i, s in enumerate(steps):
        for lens in itertools.product(range(s + 1), repeat=bs):
            tokens = bs + sum(survival[b, :n].sum() for b, n in enumerate(lens))
            seconds = [t for size, t in zip(costs.tiers.sizes, ragged, strict=True) if size >= bs + sum(lens) and s]
            seconds += [uniform[i]] if lens == (s,) * bs else []
            for verify in seconds:
                best = max(best, tokens / (around[i] + verify + kv * costs.kv_seconds[s]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "RAGGED_ADVANTAGE", 1.0)
        patch.setattr(policies, "SWITCH_EVIDENCE", 0.0)
        choice = Policy(costs, survivals_of(survival, steps, 3)).choose(bs, kv)
    assert (bs + choice.gain) / choice.seconds == pytest.approx(best, rel=1e-6)
    assert choice.tokens == min(choice.tier or bs * 4, bs * (choice.steps + 1))


def chosen(policy: Policy, bs: int = 4) -> Choice:
    """What it settles on, explorations left out."""
    return [choice for choice in (policy.choose(bs, 0) for _ in range(40)) if not choice.exploring][-1]


def test_what_it_chooses() -> None:
    """Free verification and a good draft: all of it. A useless draft: none. Half the requests good: their share."""
    good, bad = chain(0.9, 0.9, 0.9), chain(0.02, 0.02, 0.02)
    full = chosen(Policy(simple_costs(), survivals_of(good, [0, 1, 3], 3)))
    assert (full.steps, full.tier, full.tokens) == (3, None, 16)
    assert chosen(Policy(simple_costs(), survivals_of(bad, [0, 1, 3], 3))).steps == 0
    half = np.vstack([chain(0.97, 0.97, 0.97, bs=2), chain(0.05, 0.05, 0.05, bs=2)])
    some = chosen(Policy(simple_costs(verify=0.05), survivals_of(half, [0, 1, 3], 3)))
    assert (some.steps, some.tier, some.tokens) == (3, 10, 10)
    assert some.gain == pytest.approx(half[:2].sum(), abs=0.01)
    uniform = chosen(Policy(simple_costs(verify=0.05, ragged=False), survivals_of(half, [0, 1, 3], 3)))
    assert uniform.tier is None


def first_switch(*shares: float) -> int | None:
    """After how many steps drafting begins, where the first draft token is accepted at these rates in turn.

    A draft step costs 0.1 of a step, so drafting is worth ``(1 + share) / 1.1`` of plain decoding.
    """
    policy = Policy(simple_costs(), survivals_of(chain(0.01, 0.01, 0.01), [0, 1, 3], 3))
    for step in range(60):
        share = shares[step % len(shares)]
        policy.survivals = survivals_of(chain(share, 0.01, 0.01), [0, 1, 3], 3)
        if policy.choose(4, 0).steps:
            return step + 1
    return None


def test_other_steps_are_taken_for_much_at_once_or_little_that_stays() -> None:
    """Two percent in all; jitter around nothing is never enough."""
    assert first_switch(0.9) == 1
    assert first_switch(0.16) == 1  # 5.5 %
    assert first_switch(0.12) == 2  # 1.8 %
    assert first_switch(0.05) is None
    assert first_switch(0.12, 0.05) is None


def test_plain_decoding_is_taken_for_more() -> None:
    """Ten percent in all: two for each look that promises five more without drafts."""
    policy = Policy(simple_costs(), survivals_of(chain(0.9, 0.01, 0.01), [0, 1, 3], 3))
    assert policy.choose(4, 0).steps == 1
    policy.survivals = survivals_of(chain(0.05, 0.01, 0.01), [0, 1, 3], 3)
    assert [policy.choose(4, 0).steps for _ in range(4)] == [1, 1, 0, 0]


def test_a_turn_is_no_jitter() -> None:
    """Another kind of requests gets what is best for it at once, however little that is better."""
    policy = Policy(simple_costs(), survivals_of(chain(0.01, 0.01, 0.01), [0, 1, 3], 3))
    assert policy.choose(4, 0).steps == 0
    policy.switch_survivals(survivals_of(chain(0.12, 0.01, 0.01), [0, 1, 3], 3))
    assert policy.choose(4, 0).steps == 1
    policy.switch_survivals(survivals_of(chain(0.09, 0.01, 0.01), [0, 1, 3], 3))
    assert policy.choose(4, 0).steps == 0


def test_a_batch_of_new_requests_is_another_batch() -> None:
    """It gets what is best for it at once; one that hardly changed keeps what it has."""
    for new_requests, steps in ((1, 0), (2, 1)):
        policy = Policy(simple_costs(), survivals_of(chain(0.01, 0.01, 0.01), [0, 1, 3], 3))
        assert policy.choose(4, 0).steps == 0
        policy.survivals = survivals_of(chain(0.12, 0.01, 0.01), [0, 1, 3], 3)
        policy.add_new_requests(new_requests)
        assert policy.choose(4, 0).steps == steps


def test_ragged_must_promise_two_percent_more() -> None:
    """Than the best uniform step: a little better is not enough."""
    survival = np.array([[0.9, 0.9, 0.9], [0.9, 0.9, 0.9], [0.9, 0.9, 0.1], [0.9, 0.9, 0.1]]).cumprod(1)
    outcomes = set()
    for verify in np.linspace(0.005, 0.05, 40):
        uniform = max((4 + survival[:, :s].sum()) / (1 + verify * 4 * s) for s in (0, 1, 3))
        ragged = (4 + survival.sum() - 2 * survival[3, 2]) / (1 + verify * 10)
        advantage = ragged / uniform
        if abs(advantage - 1.02) > 0.002:
            choice = chosen(Policy(simple_costs(verify=verify, draft=0.0), survivals_of(survival, [0, 1, 3], 3)))
            assert choice.steps == 3
            assert choice.tier == (14 if advantage > 1.02 else None), (verify, advantage)
            outcomes.add((advantage > 1, advantage > 1.02))
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_exploration_is_paid_for() -> None:
    """Plain decoding is left now and then, but the time lost stays within its share."""
    policy = Policy(simple_costs(draft=1.0), survivals_of(chain(0.02, 0.02, 0.02), [0, 1, 3], 3))
    choices = []
    for i in range(6000):
        policy.add_new_requests(int(i % 10 == 0))
        choices.append(policy.choose(4, 0))
    explored = [choice for choice in choices if choice.exploring]
    assert {choice.steps for choice in choices if not choice.exploring} == {0}
    assert {choice.steps for choice in explored} == {1}
    assert len(explored) % policies.EXPLORATION_BURST == 0
    assert 16 <= len(explored) <= policies.EXPLORATION_BURST * 6000 // policies.EXPLORATION_INTERVAL
    assert not any(policy.choose(4, 0).exploring for _ in range(6000))  # nobody joins: nothing can be seen
    lost = sum(choice.seconds - 1 for choice in explored)
    share = policies.PLAIN_EXPLORATION_BUDGET + policies.PER_REQUEST_EXPLORATION_BUDGET / 4
    assert lost <= 1.1 * share * sum(choice.seconds for choice in choices)


def test_a_draft_that_became_good_is_found() -> None:
    """Plain decoding is not for ever: explorations bring the news."""
    policy = Policy(simple_costs(draft=0.4), survivals_of(chain(0.02, 0.02, 0.02), [0, 1, 3], 3))
    assert chosen(policy).steps == 0
    policy.survivals.set_prior(np.full(3, 0.95), np.ones(3))
    for i in range(1000):
        policy.add_new_requests(int(i % 10 == 0))
        choice = policy.choose(4, 0)
        if choice.steps:
            policy.survivals.update(histogram_of(chain(0.95, 0.95, 0.95)[:, : choice.steps], 3), choice.steps)
    assert chosen(policy).steps == 3


def test_few_more_requests_than_were_profiled() -> None:
    """Beyond the captured sizes costs go on along the last slope, and everything is still chosen from."""
    policy = Policy(simple_costs(), survivals_of(chain(0.9, 0.9, 0.9), [0, 1, 3], 3))
    choice = policy.choose(40, 0)
    assert choice.tokens == 40 * (choice.steps + 1)
    assert choice.profiled == pytest.approx(10 * simple_costs().uniform[4].seconds[0] + 3, abs=0.01)


def test_correction_changes_the_choice() -> None:
    """A tier with an odd kernel is left."""
    half = np.vstack([chain(0.97, 0.97, 0.97, bs=2), chain(0.05, 0.05, 0.05, bs=2)])
    policy = Policy(simple_costs(verify=0.05), survivals_of(half, [0, 1, 3], 3))
    first = chosen(policy)
    for _ in range(100):
        choice = policy.choose(4, 0)
        policy.observe(choice, choice.profiled * (1.6 if choice.tier == first.tier else 1.0))
    assert first.tier == 10
    assert chosen(policy).tier != 10


@pytest.mark.parametrize(("truth", "steps", "trials"), [(0.8, 1, None), (1.0, 3, KNOWN_AFTER)])
def test_what_was_never_timed_is_tried(truth: float, steps: int, trials: int | None) -> None:
    """One draft step promises 4 % less than three by the profile, and is chosen if it takes a fifth less in truth."""
    policy = Policy(simple_costs(draft=0.27, ragged=False), survivals_of(chain(0.7, 0.7, 0.7), [0, 1, 3], 3))
    assert chosen(policy).steps == 3
    choices = [policy.choose(4, 0)]
    for _ in range(800):
        policy.observe(choices[-1], choices[-1].profiled * (truth if choices[-1].steps == 1 else 1.0))
        choices.append(policy.choose(4, 0))
    assert chosen(policy).steps == steps
    tried = [choice for choice in choices if choice.exploring and choice.steps == 1]
    assert trials in (None, len(tried))  # what is known is not tried again
    lost = sum(choice.seconds - (4 + choice.gain) / (4 * 2.533 / 1.81) for choice in tried)
    assert (
        lost
        <= policies.EXPLORATION_BUDGET * sum(choice.seconds for choice in choices) + policies.MAX_TRIAL_CREDIT * 1.81
    )


def test_a_trial_does_not_undo_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draft step promises 4 % more than three, which takes three looks to count; trials come in between."""
    monkeypatch.setattr(policies, "SWITCH_EVIDENCE", 0.1)
    policy = Policy(simple_costs(draft=0.2, ragged=False), survivals_of(chain(0.7, 0.7, 0.7), [0, 1, 3], 3))
    assert chosen(policy).steps == 3
    policy.survivals = survivals_of(chain(0.6, 0.5, 0.5), [0, 1, 3], 3)
    with monkeypatch.context() as patch:
        patch.setattr(policy, "_trial", lambda *_: (2, 0, True))
        for _ in range(3):
            assert policy.choose(4, 0).exploring
    assert policy.choose(4, 0).steps == 1


def test_plain_decoding_is_timed_before_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the profile it takes 12 % longer than in truth, and a draft that became useless is not worth leaving.

    That is known slowly enough for all trials to come first.
    """
    monkeypatch.setattr("tessera.tilespec.gain.MEMORY_REQUESTS", 32.0)
    costs = simple_costs(draft=0.2, ragged=False)
    costs = dataclasses.replace(costs, uniform={**costs.uniform, 1: Curve([4], [1.12])})
    policy = Policy(costs, survivals_of(chain(0.9, 0.9, 0.9), [0, 1, 3], 3))
    choices = [policy.choose(4, 0)]
    for _ in range(400):
        last = choices[-1]
        if last.steps:
            policy.survivals.update(histogram_of(chain(0.1, 0.1, 0.1)[:, : last.steps], 3), last.steps)
        policy.observe(last, last.profiled / (1 if last.steps else 1.12))
        choices.append(policy.choose(4, 0))
    assert choices[0].steps == 3
    assert {choice.steps for choice in choices[350:] if not choice.exploring} == {0}
    tried = [i for i, choice in enumerate(choices) if choice.exploring and choice.steps == 0]
    assert tried == list(range(tried[0], tried[0] + KNOWN_AFTER))


def test_it_looks_again_when_the_batch_changes_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the choice stays, even where something else became better; explorations are no choice to stay at."""
    monkeypatch.setattr(policies, "SEARCH_INTERVAL", 4)
    policy = Policy(simple_costs(), survivals_of(chain(0.9, 0.9, 0.9), [0, 1, 3], 3))
    first = policy.choose(4, 0)
    later = [policy.choose(4, i) for i in range(8)]
    assert [choice is first for choice in later] == [True] * 3 + [False] * 5
    assert [choice is later[3] for choice in later] == [False] * 3 + [True] * 4 + [False]
    assert policy.choose(3, 0).tokens == 12
    assert policy.choose(4, 0).tokens == 16
    joining = []
    for kv_tokens in (10, 0):
        policy.add_new_requests(1)
        joining.append(policy.choose(4, kv_tokens))
    assert joining[0] is not joining[1]
    policy = Policy(simple_costs(draft=0.4), survivals_of(chain(0.7, 0.2, 0.2), [0, 1, 3], 3))
    explored = [policy.choose(4, 0).exploring for _ in range(4000)]
    assert any(explored)
    assert not any(before and after for before, after in itertools.pairwise(explored))


@pytest.mark.parametrize("ragged", [True, False])
def test_a_few_requests_more_or_less_are_no_reason_to_look(monkeypatch: pytest.MonkeyPatch, ragged: bool) -> None:
    """The option stays and is that of the batch as it is now; an eighth of it is another batch, joined or gone."""
    costs = dataclasses.replace(
        simple_costs(draft=0.01),
        tiers=Curve(range(24, 97, 8), [1 + 0.01 * (m - 24) for m in range(24, 97, 8)]) if ragged else None,
        uniform={s + 1: Curve([8, 32], [1 + 0.1 * s, 1 + 0.4 * s]) for s in (0, 1, 3)},
        kv_seconds={0: 1e-4, 1: 2e-4, 3: 3e-4},
        batch_sizes=[8, 16, 25, 32],
    )
    half = np.vstack([chain(0.97, 0.97, 0.97, bs=2), chain(0.02, 0.02, 0.02, bs=2)])
    policy = Policy(costs, survivals_of(half, [0, 1, 3], 3))
    held = chosen(policy, 24)
    assert (held.steps, held.tier) == (3, 64 if ragged else None)
    assert policy.needs_search(24)
    monkeypatch.setattr(policies, "SEARCH_INTERVAL", 100)
    for bs, new_requests in ((24, 2), (26, 2), (22, 2)):
        policy._new_requests = new_requests
        assert not policy.needs_search(bs)
        choice = policy.choose(bs, 500)
        options, outlook = policy.evaluate(bs, 500)
        row, column = policy.steps.index(held.steps), 1 + options.tiers.tolist().index(held.tier) if held.tier else 0
        assert (choice.steps, choice.tier) == (held.steps, held.tier)
        assert choice.tokens == (held.tier or bs * (held.steps + 1))
        assert choice.kind == options.kinds[row, column]
        if bs == 24:
            assert choice is held
            continue
        assert choice.profiled == pytest.approx(outlook.profiled[row, column])
        assert choice.seconds == pytest.approx(outlook.seconds[row, column])
        assert choice.gain / bs == pytest.approx(held.gain / 24, rel=0.01)
    for bs, new_requests, looks in ((24, 3, True), (27, 0, True), (21, 0, True), (24, 2, False)):
        policy._new_requests = new_requests
        assert policy.needs_search(bs) == looks, (bs, new_requests)


def test_plain_decoding_is_looked_at_after_each_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few requests have joined: later there is no draft of theirs any more."""
    policy = Policy(simple_costs(), survivals_of(chain(0.02, 0.02, 0.02), [0, 1, 3], 3))
    assert chosen(policy, 64).steps == 0
    monkeypatch.setattr(policies, "SEARCH_INTERVAL", 100)
    assert [policy.needs_search(64), policy.needs_search(63)] == [False, True]
    policy.add_new_requests(1)
    assert policy.needs_search(64)


def test_a_tier_that_another_size_does_not_have_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than it has tokens; as many as the largest batch, which has no room for padding."""
    costs = dataclasses.replace(simple_costs(), tiers=Curve([32, 40], [0.1, 0.1]), batch_sizes=[8, 34])
    monkeypatch.setattr(policies, "SEARCH_INTERVAL", 100)
    policy = Policy(costs, survivals_of(chain(0.9, 0.9, 0.9), [0, 1, 3], 3))
    for tier, steps, bs, looks in ((32, 1, 33, True), (40, 3, 33, False), (40, 1, 34, False), (80, 1, 34, True)):
        policy.choose(32, 0)
        choice = policy.choose(32, 0)._replace(steps=steps, tier=tier)
        policy._last = LastSearch(32, policy.steps.index(steps), choice)
        policy._elapsed = 0
        assert policy.needs_search(bs) == looks, (tier, steps, bs)


def test_a_tier_with_an_odd_kernel_is_passed_over() -> None:
    """For the greater one that is cheaper; the peak says nothing about other sizes."""
    costs = simple_costs(verify=0.05)
    assert costs.tiers is not None
    peaked = Curve(
        costs.tiers.sizes,
        [t + (0.5 if m == 10 else 0) for m, t in zip(costs.tiers.sizes, costs.tiers.seconds, strict=True)],
    )
    half = np.vstack([chain(0.97, 0.97, 0.97, bs=2), chain(0.05, 0.05, 0.05, bs=2)])
    known = survivals_of(half, [0, 1, 3], 3)
    assert chosen(Policy(costs, known)).tier == 10
    assert chosen(Policy(dataclasses.replace(costs, tiers=peaked), known)).tier == 12
