"""The solver against brute force, hysteresis, exploration, the cost table and what survivals promise."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tessera.tilespec import gain
from tessera.tilespec import policy as policies
from tessera.tilespec.costs import COMMON_RATE, FIRST, RATE, SURPRISE, Correction, CostTable, Curve
from tessera.tilespec.gain import Survivals
from tessera.tilespec.policy import Choice, Policy
from tessera.tilespec.whole_steps import completed
from tessera_kernels.histogram import HISTOGRAM_BINS, HISTOGRAM_UNIT

Floats = npt.NDArray[np.float64]
CENTERS = (np.arange(HISTOGRAM_BINS) + 0.5) / HISTOGRAM_BINS


@pytest.fixture(autouse=True)
def _looks_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "LOOK_INTERVAL", 1)


def histogram_of(survival: Floats, depths: int) -> npt.NDArray[np.int32]:
    """As the kernel counts them. Survivals in the middle of bins are counted without loss."""
    counts = np.zeros((2, depths, HISTOGRAM_BINS))
    for line in survival:
        for depth, p in enumerate(line):
            cell = min(int(p * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)
            counts[:, depth, cell] += 1, p / HISTOGRAM_UNIT
    return counts.round().astype(np.int32)


def told(survival: Floats, steps: list[int], depths: int) -> Survivals:
    """Survivals that know this batch and nothing else."""
    drafted = survival.shape[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gain, "FIRST_REQUESTS", 0.0)
        known = Survivals(depths, steps, np.full(depths, 0.5))
        known.update(histogram_of(survival, depths), drafted)
        known.gain(known.stretch)  # looked at, and so worked in
    return known


def random_costs(rng: np.random.Generator, steps: list[int], bs: int) -> CostTable:
    """Random times, which need not rise."""
    tiers = sorted(set(rng.integers(1, bs * (steps[-1] + 1) + 3, 5).tolist()))

    def curve(scale: float) -> Curve:
        return Curve([1, bs + 1, 2 * bs + 1], (np.sort(rng.random(3)) * scale).tolist())

    return CostTable(
        tiers=Curve(tiers, (1 + rng.random(len(tiers)) * 4).tolist()),
        uniform={s + 1: Curve([bs], [1 + s * rng.random()]) for s in steps},
        draft={s: curve(0.3 * s) for s in steps if s},
        extend={s + 1: curve(0.1) for s in steps},
        kv_seconds={s: 1e-5 * (1 + s) for s in steps},
        host_seconds=0.05,
        batch_sizes=[bs, bs + 1],  # a graph for more requests: its padding takes what a tier has beyond all tokens
    )


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
        choice = Policy(costs, told(survival, steps, 3)).choose(bs, kv)
    assert (bs + choice.gain) / choice.seconds == pytest.approx(best, rel=1e-6)
    assert choice.tokens == min(choice.tier or bs * 4, bs * (choice.steps + 1))


def simple_costs(verify: float = 0.0, draft: float = 0.1, ragged: bool = True) -> CostTable:
    """A step of 1, plus ``verify`` for each token beyond 4 requests and ``draft`` for each draft step."""
    steps = [0, 1, 3]
    tiers = Curve([4, 6, 8, 10, 12, 14, 16], [1 + verify * (m - 4) for m in range(4, 17, 2)])
    return CostTable(
        tiers=tiers if ragged else None,
        uniform={s + 1: Curve([4], [1 + verify * 4 * s]) for s in steps},
        draft={s: Curve([4], [draft * s]) for s in steps if s},
        extend={s + 1: Curve([4], [0.0]) for s in steps},
        kv_seconds=dict.fromkeys(steps, 0.0),
        host_seconds=0,
        batch_sizes=[4],
    )


def chain(*conditional: float, bs: int = 4) -> Floats:
    """Survivals of requests that are all alike."""
    return np.tile(np.cumprod(conditional), (bs, 1))


def chosen(policy: Policy, bs: int = 4) -> Choice:
    """What it settles on, explorations left out."""
    return [choice for choice in (policy.choose(bs, 0) for _ in range(40)) if not choice.exploring][-1]


def test_what_it_chooses() -> None:
    """Free verification and a good draft: all of it. A useless draft: none. Half the requests good: their share."""
    good, bad = chain(0.9, 0.9, 0.9), chain(0.02, 0.02, 0.02)
    full = chosen(Policy(simple_costs(), told(good, [0, 1, 3], 3)))
    assert (full.steps, full.tier, full.tokens) == (3, None, 16)
    assert chosen(Policy(simple_costs(), told(bad, [0, 1, 3], 3))).steps == 0
    half = np.vstack([chain(0.97, 0.97, 0.97, bs=2), chain(0.05, 0.05, 0.05, bs=2)])
    some = chosen(Policy(simple_costs(verify=0.05), told(half, [0, 1, 3], 3)))
    assert (some.steps, some.tier, some.tokens) == (3, 10, 10)
    assert some.gain == pytest.approx(half[:2].sum(), abs=0.01)
    uniform = chosen(Policy(simple_costs(verify=0.05, ragged=False), told(half, [0, 1, 3], 3)))
    assert uniform.tier is None


def first_switch(*shares: float) -> int | None:
    """After how many steps drafting begins, where the first draft token is accepted at these rates in turn.

    A draft step costs 0.1 of a step, so drafting is worth ``(1 + share) / 1.1`` of plain decoding.
    """
    policy = Policy(simple_costs(), told(chain(0.01, 0.01, 0.01), [0, 1, 3], 3))
    for step in range(60):
        share = shares[step % len(shares)]
        policy.survivals = told(chain(share, 0.01, 0.01), [0, 1, 3], 3)
        if policy.choose(4, 0).steps:
            return step + 1
    return None


def test_other_steps_are_taken_for_much_at_once_or_little_that_stays() -> None:
    """Ten percent in all; jitter around nothing is never enough."""
    assert first_switch(0.9) == 1
    assert first_switch(0.16) == 2  # 5.5 %
    assert first_switch(0.12) == 6  # 1.8 %
    assert first_switch(0.05) is None
    assert first_switch(0.12, 0.05) is None


def test_a_turn_is_no_jitter() -> None:
    """Another kind of requests gets what is best for it at once, however little that is better."""
    policy = Policy(simple_costs(), told(chain(0.01, 0.01, 0.01), [0, 1, 3], 3))
    assert policy.choose(4, 0).steps == 0
    policy.turn(told(chain(0.12, 0.01, 0.01), [0, 1, 3], 3))
    assert policy.choose(4, 0).steps == 1
    policy.turn(told(chain(0.09, 0.01, 0.01), [0, 1, 3], 3))
    assert policy.choose(4, 0).steps == 0


def test_ragged_must_promise_two_percent_more() -> None:
    """Than the best uniform step: a little better is not enough."""
    survival = np.array([[0.9, 0.9, 0.9], [0.9, 0.9, 0.9], [0.9, 0.9, 0.1], [0.9, 0.9, 0.1]]).cumprod(1)
    outcomes = set()
    for verify in np.linspace(0.005, 0.05, 40):
        uniform = max((4 + survival[:, :s].sum()) / (1 + verify * 4 * s) for s in (0, 1, 3))
        ragged = (4 + survival.sum() - 2 * survival[3, 2]) / (1 + verify * 10)
        advantage = ragged / uniform
        if abs(advantage - 1.02) > 0.002:
            choice = chosen(Policy(simple_costs(verify=verify, draft=0.0), told(survival, [0, 1, 3], 3)))
            assert choice.steps == 3
            assert choice.tier == (14 if advantage > 1.02 else None), (verify, advantage)
            outcomes.add((advantage > 1, advantage > 1.02))
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_exploration_is_paid_for() -> None:
    """Plain decoding is left now and then, but the time lost stays within its share."""
    policy = Policy(simple_costs(draft=1.0), told(chain(0.02, 0.02, 0.02), [0, 1, 3], 3))
    choices = [policy.choose(4, 0, fresh=i % 10 == 0) for i in range(6000)]
    explored = [choice for choice in choices if choice.exploring]
    assert {choice.steps for choice in choices if not choice.exploring} == {0}
    assert {choice.steps for choice in explored} == {1}
    assert len(explored) % policies.BURST == 0
    assert 16 <= len(explored) <= policies.BURST * 6000 // policies.EXPLORATION_INTERVAL
    assert not any(policy.choose(4, 0).exploring for _ in range(6000))  # nobody joins: nothing can be seen
    lost = sum(choice.seconds - 1 for choice in explored)
    share = policies.EXPLORED_SHARE_OF_PLAIN + policies.EXPLORED_SHARE_OF_ONE / 4
    assert lost <= 1.1 * share * sum(choice.seconds for choice in choices)


def test_a_draft_that_became_good_is_found() -> None:
    """Plain decoding is not for ever: explorations bring the news."""
    policy = Policy(simple_costs(draft=0.4), told(chain(0.02, 0.02, 0.02), [0, 1, 3], 3))
    assert chosen(policy).steps == 0
    policy.survivals.assume(np.full(3, 0.95))
    for i in range(1000):
        choice = policy.choose(4, 0, fresh=i % 10 == 0)
        if choice.steps:
            policy.survivals.update(histogram_of(chain(0.95, 0.95, 0.95)[:, : choice.steps], 3), choice.steps)
    assert chosen(policy).steps == 3


def test_few_more_requests_than_were_profiled() -> None:
    """Beyond the captured sizes costs go on along the last slope, and everything is still chosen from."""
    policy = Policy(simple_costs(), told(chain(0.9, 0.9, 0.9), [0, 1, 3], 3))
    choice = policy.choose(40, 0)
    assert choice.tokens == 40 * (choice.steps + 1)
    assert choice.profiled == pytest.approx(10 * simple_costs().uniform[4].seconds[0] + 3, abs=0.01)


def test_depths_that_were_not_drafted_are_extrapolated() -> None:
    """From one drafted depth: each survival shrinks by the mean acceptance of the depths behind it."""
    survival = np.array([[0.9], [0.5], [0.5], [0.1]])
    known = Survivals(3, [0, 1, 2, 3], np.array([0.7, 0.7, 0.7]))
    whole = known.stretch + np.arange(4)
    np.testing.assert_allclose(known.gain(whole), np.cumsum([0, 0.7, 0.7**2, 0.7**3]))
    known.assume(np.array([0.7, 0.8, 0.5]))
    for _ in range(1000):
        known.update(histogram_of(survival, 3), 1)
        known.gain(known.stretch)
    totals = survival.sum() / 4 * np.array([0, 1, 1 + 0.8, 1 + 0.8 + 0.4])
    np.testing.assert_allclose(known.gain(whole), totals, rtol=1e-3)
    items = np.sort(np.concatenate([survival * f for f in (1, 0.8, 0.4)], axis=None))[::-1]
    for k in range(13):
        found = known.gain(np.array([k / 4 + known.stretch[3]]))[0] * 4
        assert found == pytest.approx(items[:k].sum(), abs=0.01), k


KINDS = np.arange(5)


def test_correction() -> None:
    """A kind of step that is slower than profiled is found, what slows all down alike is not blamed on one."""
    correction = Correction(5)
    for _ in range(400):
        for kind, odd in ((0, 1.0), (1, 1.5), (2, 1.0)):
            correction.observe(kind, 2.0, 2.0 * 1.2 * odd)
    np.testing.assert_allclose(correction.factors(KINDS), [1.2, 1.8, 1.2, 1.2, 1.2], rtol=5e-3)
    before = correction.factors(KINDS)
    for measured in (float("nan"), 0.0, -1.0, float("inf")):
        correction.observe(1, 1.0, measured)
    np.testing.assert_array_equal(correction.factors(KINDS), before)
    correction.observe(2, 1.0, 1e9)  # a pause of the host, say
    assert correction.factors(KINDS)[2] <= before[2] * (1 + (RATE + COMMON_RATE) * SURPRISE) + 1e-9
    assert correction.measured.tolist() == [400, 400, 401, 0, 0]


def test_a_slow_phase_does_not_favour_what_was_timed_before_it() -> None:
    """All steps take a fifth longer: the kind that runs shows it, and the others are not taken for faster."""
    correction = Correction(5)
    for _ in range(100):
        for kind in (0, 1):
            correction.observe(kind, 2.0, 2.0)
    for _ in range(50):
        correction.observe(0, 2.0, 2.4)
    running, timed_before, never = correction.factors(KINDS)[[0, 1, 4]]
    assert running == pytest.approx(1.2, rel=0.01)
    assert min(timed_before, never) > 0.95 * running


def test_correction_changes_the_choice() -> None:
    """A tier with an odd kernel is left."""
    half = np.vstack([chain(0.97, 0.97, 0.97, bs=2), chain(0.05, 0.05, 0.05, bs=2)])
    policy = Policy(simple_costs(verify=0.05), told(half, [0, 1, 3], 3))
    first = chosen(policy)
    for _ in range(100):
        choice = policy.choose(4, 0)
        policy.observe(choice, choice.profiled * (1.6 if choice.tier == first.tier else 1.0))
    assert first.tier == 10
    assert chosen(policy).tier != 10


@pytest.mark.parametrize(("truth", "steps", "trials"), [(0.8, 1, None), (1.0, 3, FIRST)])
def test_what_was_never_timed_is_tried(truth: float, steps: int, trials: int | None) -> None:
    """One draft step promises 10 % less than three by the profile, and is chosen if it takes a fifth less in truth."""
    policy = Policy(simple_costs(draft=0.2, ragged=False), told(chain(0.7, 0.7, 0.7), [0, 1, 3], 3))
    assert chosen(policy).steps == 3
    choices = [policy.choose(4, 0)]
    for _ in range(800):
        policy.observe(choices[-1], choices[-1].profiled * (truth if choices[-1].steps == 1 else 1.0))
        choices.append(policy.choose(4, 0))
    assert chosen(policy).steps == steps
    tried = [choice for choice in choices if choice.exploring and choice.steps == 1]
    assert trials in (None, len(tried))  # what is known is not tried again
    lost = sum(choice.seconds - (4 + choice.gain) / (4 * 2.533 / 1.6) for choice in tried)
    assert lost <= policies.EXPLORED_SHARE * sum(choice.seconds for choice in choices) + policies.MOST_SAVED * 1.6


def test_a_trial_does_not_undo_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draft step promises 4 % more than three, which takes three looks to count; trials come in between."""
    policy = Policy(simple_costs(draft=0.2, ragged=False), told(chain(0.7, 0.7, 0.7), [0, 1, 3], 3))
    assert chosen(policy).steps == 3
    policy.survivals = told(chain(0.6, 0.5, 0.5), [0, 1, 3], 3)
    with monkeypatch.context() as patch:
        patch.setattr(policy, "_try", lambda *_: (2, 0, True))
        for _ in range(3):
            assert policy.choose(4, 0).exploring
    assert policy.choose(4, 0).steps == 1


def test_plain_decoding_is_timed_before_it_is_left_out() -> None:
    """By the profile it takes 15 % longer than in truth, and a draft that became useless is not worth leaving."""
    costs = simple_costs(draft=0.2, ragged=False)
    costs = dataclasses.replace(costs, uniform={**costs.uniform, 1: Curve([4], [1.15])})
    policy = Policy(costs, told(chain(0.9, 0.9, 0.9), [0, 1, 3], 3))
    choices = [policy.choose(4, 0)]
    for _ in range(400):
        last = choices[-1]
        if last.steps:
            policy.survivals.update(histogram_of(chain(0.1, 0.1, 0.1)[:, : last.steps], 3), last.steps)
        policy.observe(last, last.profiled / (1 if last.steps else 1.15))
        choices.append(policy.choose(4, 0))
    assert choices[0].steps == 3
    assert {choice.steps for choice in choices[350:] if not choice.exploring} == {0}
    tried = [i for i, choice in enumerate(choices) if choice.exploring and choice.steps == 0]
    assert tried == list(range(tried[0], tried[0] + FIRST))


def test_it_looks_again_when_the_batch_changes_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the choice stays, even where something else became better; explorations are no choice to stay at."""
    monkeypatch.setattr(policies, "LOOK_INTERVAL", 4)
    policy = Policy(simple_costs(), told(chain(0.9, 0.9, 0.9), [0, 1, 3], 3))
    first = policy.choose(4, 0)
    later = [policy.choose(4, i) for i in range(8)]
    assert [choice is first for choice in later] == [True] * 3 + [False] * 5
    assert [choice is later[3] for choice in later] == [False] * 3 + [True] * 4 + [False]
    assert policy.choose(3, 0).tokens == 12
    assert policy.choose(4, 0).tokens == 16
    assert policy.choose(4, 10, fresh=True) is not policy.choose(4, 0, fresh=True)
    policy = Policy(simple_costs(draft=0.4), told(chain(0.7, 0.2, 0.2), [0, 1, 3], 3))
    explored = [policy.choose(4, 0).exploring for _ in range(4000)]
    assert any(explored)
    assert not any(before and after for before, after in itertools.pairwise(explored))


def test_a_curve_keeps_its_peaks_and_goes_on() -> None:
    """What was measured stays; beyond the last size the last slope counts, if it rises."""
    curve = Curve([1, 2, 4, 8], [1.0, 3.0, 2.0, 5.0])
    np.testing.assert_allclose(curve.at([1, 2, 3, 4, 6, 8, 10]), [1, 3, 2.5, 2, 3.5, 5, 6.5])
    np.testing.assert_allclose(Curve([1, 2], [3.0, 2.0]).at([2, 9]), [2, 2])
    assert Curve([4], [2.0]).at(1) == 2
    assert Curve([4], [2.0]).at(8) == 4
    for sizes, seconds in (
        ([], []),
        ([1, 1], [1, 1]),
        ([2, 1], [1, 1]),
        ([1], [float("nan")]),
        ([1], [-1.0]),
        ([0], [1]),
    ):
        with pytest.raises(ValueError, match=r"must"):
            Curve(sizes, seconds)


def test_a_tier_with_an_odd_kernel_is_passed_over() -> None:
    """For the greater one that is cheaper; the peak says nothing about other sizes."""
    costs = simple_costs(verify=0.05)
    assert costs.tiers is not None
    peaked = Curve(
        costs.tiers.sizes,
        [t + (0.5 if m == 10 else 0) for m, t in zip(costs.tiers.sizes, costs.tiers.seconds, strict=True)],
    )
    half = np.vstack([chain(0.97, 0.97, 0.97, bs=2), chain(0.05, 0.05, 0.05, bs=2)])
    known = told(half, [0, 1, 3], 3)
    assert chosen(Policy(costs, known)).tier == 10
    assert chosen(Policy(dataclasses.replace(costs, tiers=peaked), known)).tier == 12


def test_a_cost_table_survives_json() -> None:
    """And a damaged one is a ValueError, whatever is wrong with it."""
    costs = random_costs(np.random.default_rng(1), [0, 1, 3], 4)
    content = costs.to_json()
    assert CostTable.from_json(content).to_json() == content
    for key in content:
        for value in (None, "x", [1], {"1": 2}, {"0": {"sizes": [1], "seconds": [1]}}, -1, float("nan")):
            if key == "batch_sizes" and value in ([1], {"1": 2}):
                continue
            if key == "tiers" and value is None:
                continue
            with pytest.raises(ValueError, match=r"."):
                CostTable.from_json({**content, key: value})
        with pytest.raises(ValueError, match=r"."):
            CostTable.from_json({k: v for k, v in content.items() if k != key})


def test_whole_steps_complete_a_profile_of_graphs() -> None:
    """The share of cached tokens of each number of draft steps, and what is between the graphs, are found again."""
    graphs = simple_costs(verify=0.05)
    true = dataclasses.replace(graphs, kv_seconds={0: 1e-5, 1: 1.5e-5, 3: 3e-5}, host_seconds=0.2)
    contexts = [100, 800, 1600]
    kv = np.array([true.kv_seconds[s] for s in true.steps])
    seconds = np.array([true.around_verify(4) + true.verify_uniform(4) + 4 * c * kv for c in contexts])
    found = completed(graphs, 4, contexts, seconds)
    assert found.host_seconds == pytest.approx(0.2)
    assert found.kv_seconds == pytest.approx(true.kv_seconds)
    falling = completed(graphs, 4, contexts, seconds[::-1] - 5)
    assert falling.kv_seconds == dict.fromkeys(graphs.steps, 0.0)
    assert falling.host_seconds == 0
    alone = completed(graphs, 4, contexts[:1], seconds[:1])
    assert alone.kv_seconds == dict.fromkeys(graphs.steps, 0.0)
