"""The host's side of TileSpec in a step, on the CPU: what comes late, what is timed, what is learnt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.tilespec.calibration import FIT_INTERVAL, Calibration, Calibrations, Traffic, bin_edges
from tessera.tilespec.candidates import candidates
from tessera.tilespec.decider import Decider
from tessera.tilespec.follower import Follower, StepDecision
from tessera.tilespec.gain import BatchStamp
from tessera.tilespec.host_copies import HostCopyQueue
from tessera.tilespec.nominal import nominal
from tessera.tilespec.policy import SEARCH_INTERVAL
from tessera.tilespec.scores import NO_DRAFT, Scores
from tessera.tilespec.stopwatch import Stopwatch
from tessera.tilespec.tiers import tiers
from tessera.tilespec.trace import Trace
from tessera_kernels.ops.learning.acceptance_model import AcceptanceModel
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS

DEPTHS = 5
REQUESTS = 64


def scores() -> Scores:
    """Fresh ones."""
    table = torch.from_numpy(Calibration(DEPTHS).logits())
    return Scores(
        REQUESTS, DEPTHS, "cpu", AcceptanceModel.create(torch.from_numpy(bin_edges()), table, REQUESTS, "cpu")
    )


def decider(
    trace: Path | None = None, broadcast: Callable[[StepDecision], object] | None = None
) -> tuple[Decider, Scores]:
    """A decider of the CPU engine's nominal costs."""
    own, known = scores(), (Calibration(DEPTHS), Calibration(DEPTHS))
    return Decider(nominal(candidates(DEPTHS), REQUESTS), own, known, "cpu", trace, broadcast=broadcast), own


def step(
    subject: Decider,
    own: Scores,
    bs: int,
    accepted: float,
    chooser: np.random.Generator,
    traffic: Traffic = Traffic.GREEDY,
) -> int:
    """One decode step in which each draft token is accepted with this chance; returns its draft steps."""
    choice = subject.choose(bs, bs * 100, traffic)
    steps = choice.steps
    if steps:
        requests = torch.arange(bs)
        own.begin(torch.full((bs, 1), accepted))
        own._confidence[:bs, :steps] = accepted
        plan = own.allocate(bs, steps, requests, choice.tokens)
        right = chooser.random((bs, steps)) < accepted
        chain = np.minimum(right.cumprod(1).sum(1) + 1, plan.verify_lens[:bs].numpy())
        own.observe(bs, steps, requests, plan, torch.from_numpy(chain.astype(np.int32)))
        subject.on_verify(steps)
    return steps


@pytest.mark.parametrize(("accepted", "most"), [(0.02, 0.5), (0.98, DEPTHS)])
def test_it_settles_on_what_drafts_are_worth(accepted: float, most: float) -> None:
    """One request: a draft that is never right ends in plain decoding, one that always is in the longest chains."""
    subject, own = decider()
    chooser = np.random.default_rng(1)
    steps = [step(subject, own, 1, accepted, chooser) for _ in range(8 * FIT_INTERVAL)]
    late = np.mean(steps[-FIT_INTERVAL:])
    assert late <= most if accepted < 0.5 else late == most


def test_a_draft_that_is_sure_and_never_right_is_found_out_at_once() -> None:
    """One request: before thirty tokens are out, for a short answer has no more."""
    subject, own = decider()
    steps = []
    for _ in range(30):
        choice = subject.choose(1, 100)
        steps.append(choice.steps)
        if choice.steps:
            own._confidence[:1] = 0.97
            plan = own.allocate(1, choice.steps, torch.arange(1), choice.tokens)
            own.observe(1, choice.steps, torch.arange(1), plan, torch.ones(1, dtype=torch.int32))
            subject.on_verify(choice.steps)
    assert steps[0] == DEPTHS
    assert steps[-4:] == [0] * 4


def test_calibration_follows_the_outcomes() -> None:
    """Drafts that are sure and wrong half of the time are known as such after a few fits."""
    subject, own = decider()
    for _ in range(40):  # the policy may choose plain steps: here every step drafts
        own._confidence.fill_(0.99)
        plan = own.allocate(16, DEPTHS, torch.arange(16), 16 * (DEPTHS + 1))
        lens = torch.tensor([1, DEPTHS + 1] * 8, dtype=torch.int32)
        own.observe(16, DEPTHS, torch.arange(16), plan, lens)
        subject.on_verify(DEPTHS)
        subject.choose(16, 0)
    assert subject.calibrations[Traffic.GREEDY].mean()[0] == pytest.approx(0.5, abs=0.05)
    assert subject.calibrations[Traffic.GREEDY].mean()[1] == pytest.approx(1.0, abs=0.05)
    sure = int(np.searchsorted(bin_edges(), 0.99, side="right"))
    assert own.model.logits[0, sure] < 1.0  # 4.6 before


def outcome(subject: Decider, own: Scores, traffic: Traffic, accepted: int) -> int:
    """One step of 16 requests whose drafts are all sure; so many of each are accepted. Returns its draft steps."""
    steps = subject.choose(16, 0, traffic).steps
    if steps:
        own._confidence.fill_(0.9)
        plan = own.allocate(16, steps, torch.arange(16), 16 * (steps + 1))
        own.observe(16, steps, torch.arange(16), plan, torch.full((16,), min(accepted, steps) + 1, dtype=torch.int32))
        subject.on_verify(steps)
        own.reset_requests(torch.arange(16))
    return steps


def test_greedy_and_sampled_requests_are_learnt_apart() -> None:
    """Each kind's table is in force as soon as the kind is back, and is not touched by the other's outcomes."""
    subject, own = decider()
    for _ in range(4):
        late = {
            traffic: [outcome(subject, own, traffic, accepted) for _ in range(60)][3]
            for traffic, accepted in ((Traffic.GREEDY, DEPTHS), (Traffic.SAMPLED, 0))
        }
    assert late[Traffic.GREEDY] > 0
    assert late[Traffic.SAMPLED] == 0
    greedy, sampled = (one.mean()[0] for one in subject.calibrations)
    assert greedy > 0.98
    assert sampled < 0.1
    sure = int(np.searchsorted(bin_edges(), 0.9, side="right"))
    assert own.models[Traffic.GREEDY].logits[0, sure] > 3
    assert own.models[Traffic.SAMPLED].logits[0, sure] < -2
    assert own.models[Traffic.GREEDY].offsets is own.models[Traffic.SAMPLED].offsets


def test_what_is_learnt_is_handed_on_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was then."""
    monkeypatch.setattr("tessera.tilespec.decider.SAVE_INTERVAL", 5)  # fits: four early ones, and one
    own = scores()
    saved: list[Calibrations] = []
    known = Calibration(DEPTHS), Calibration(DEPTHS)
    subject = Decider(nominal(candidates(DEPTHS), REQUESTS), own, known, "cpu", save=saved.append)
    trials = []
    for _ in range(2 * FIT_INTERVAL - 1):
        own._confidence.fill_(0.9)
        plan = own.allocate(4, DEPTHS, torch.arange(4), 4 * (DEPTHS + 1))
        own.observe(4, DEPTHS, torch.arange(4), plan, torch.full((4,), DEPTHS + 1, dtype=torch.int32))
        subject.on_verify(DEPTHS)
        subject.choose(4, 0)
        trials.append(known[Traffic.GREEDY].trials.sum())
    (calibrations,) = saved
    assert 0 < calibrations[Traffic.GREEDY].trials.sum() == trials[-1]
    assert calibrations[Traffic.GREEDY] is not known[Traffic.GREEDY]
    assert calibrations[Traffic.SAMPLED].trials.sum() == 0


def test_trace_has_every_step(tmp_path: Path) -> None:
    """Timed where the next step followed directly, and not where a prefill came between.

    Histograms are with the step whose choice took them in: the policy looks after a prefill and in every fourth step.
    They are sent two steps before that, after four, or where another batch begins.
    """
    file = tmp_path / "trace.jsonl"
    subject, own = decider(file)
    chooser = np.random.default_rng(1)
    for i in range(10):
        step(subject, own, 2, 0.9, chooser)
        if i == 4:
            subject.on_prefill(1)
    subject.on_prefill(1)
    assert subject._trace is not None
    subject._trace.close()
    records = list(Trace(file).records())
    assert len(records) == 10
    assert [i for i, record in enumerate(records) if record.measured is None] == [4, 9]
    cells = [[cell for seen in record.histograms for cell in seen.cells] for record in records]
    counted = [sum(value for is_sum, *_, value in of_one if not is_sum) for of_one in cells]
    assert [items // (2 * DEPTHS) for items in counted] == [0, 0, 0, 0, 3, 2, 0, 0, 3, 0]
    assert [i for i, record in enumerate(records) if record.means] == [4, 8]


def test_one_request_is_looked_at_in_every_step(tmp_path: Path) -> None:
    """What each step has counted is taken in with the next one: without a GPU nothing is late."""
    file = tmp_path / "trace.jsonl"
    subject, own = decider(file)
    chooser = np.random.default_rng(1)
    for _ in range(6):
        step(subject, own, 1, 0.9, chooser)
    subject.on_prefill(0)
    assert subject._trace is not None
    subject._trace.close()
    seen = [
        [one.histogram((2, DEPTHS, HISTOGRAM_BINS)) for one in record.histograms] for record in Trace(file).records()
    ]
    assert [[int(one[0, 0].sum()) for one in of_one] for of_one in seen] == [[], *[[1]] * 5]


@pytest.mark.parametrize(
    ("requests", "disturbed"),
    [
        ((2, 2, 2, 2, 2, 2), [True, False, True, False]),
        ((2, 2, 2, 2, 1, 1), [True, False, True, True]),
        ((6, 5, 4, 3, 2, 1), [True, True, True, True]),
    ],
)
def test_where_requests_come_or_go_steps_are_disturbed(
    requests: tuple[int, ...], disturbed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step, those behind a prefill, and of batches that shrink; those before a prefill are not timed at all.

    Six steps with a prefill in the middle and one at the end.
    """
    subject, own = decider()
    found: list[bool] = []
    monkeypatch.setattr(subject.policy, "observe", lambda *_, disturbed: found.append(disturbed))
    subject._corrects_costs = True
    chooser = np.random.default_rng(1)
    for i, bs in enumerate(requests):
        step(subject, own, bs, 0.9, chooser)
        if i in (2, 5):
            subject.on_prefill(1)
    assert found == disturbed


def test_mailbox_keeps_what_was_sent() -> None:
    """A later write does not change what is under way."""
    box: HostCopyQueue[str] = HostCopyQueue()
    tensor = torch.arange(3)
    box.send(tensor, "a")
    tensor += 1
    box.send(tensor, "b")
    assert [(values.tolist(), tag) for values, tag in box.receive()] == [([0, 1, 2], "a"), ([1, 2, 3], "b")]
    assert box.receive() == []


def test_stopwatch_times_only_what_follows_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From start to start."""
    stopwatch: Stopwatch[int] = Stopwatch("cpu")
    monkeypatch.setattr(stopwatch, "_now", iter([1.0, 1.5, 4.0]).__next__)
    stopwatch.start(1)
    stopwatch.start(2)
    assert stopwatch.interrupt() == 2
    assert stopwatch.interrupt() is None
    stopwatch.start(3)
    assert stopwatch.receive() == [(0.5, 1)]


def test_candidates_end_with_what_was_asked_for() -> None:
    """No speculation is always among them."""
    assert candidates(1) == [0, 1]
    assert candidates(4) == [0, 1, 2, 3, 4]
    assert candidates(7) == [0, 1, 2, 3, 5, 7]


def test_tiers_are_finer_where_batches_are_small() -> None:
    """Every size up to the greatest fits into one that is at most a quarter greater, from 32 tokens on."""
    sizes = tiers(1280)
    assert sizes[:3] == [8, 16, 24]
    assert sizes[-1] == 1280
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= 48
    assert all(4 * greater <= 5 * size for size, greater in pairwise(sizes[3:]))
    assert tiers(3) == [3]


def test_a_follower_has_the_choices_and_tables_of_the_first_rank() -> None:
    """In every step, in both kinds of batches, whatever the first rank learns meanwhile."""
    orders: deque[StepDecision] = deque()
    first, own = decider(broadcast=orders.append)
    theirs = scores()
    follower = Follower(theirs, orders.popleft)
    unknown = own.models[0].logits.clone()
    chooser = np.random.default_rng(1)
    for i in range(6 * FIT_INTERVAL):
        traffic = Traffic.SAMPLED if i // FIT_INTERVAL % 2 else Traffic.GREEDY
        steps = step(first, own, 2, 0.7, chooser, traffic)
        choice = follower.choose(2, 200, traffic)
        follower.on_verify(steps)
        assert choice.steps == steps
        assert theirs.model is theirs.models[traffic]
        assert all(torch.equal(a.logits, b.logits) for a, b in zip(own.models, theirs.models, strict=True))
    assert not orders
    assert all(not torch.equal(model.logits, unknown) for model in own.models)


def test_requests_that_join_are_expected_to_be_like_others_and_not_like_the_last_one() -> None:
    """A wave, one straggler of it whose drafts all fail, and the next wave, with one prefill in all."""
    subject, own = decider()
    chooser = np.random.default_rng(1)
    wave = [step(subject, own, 8, 0.95, chooser) for _ in range(2 * FIT_INTERVAL)]
    straggler = [step(subject, own, 1, 0.02, chooser) for _ in range(2 * FIT_INTERVAL)]
    subject.on_prefill(8)
    own.reset_requests(torch.arange(8))
    assert wave[-1] > 0
    assert straggler[-1] == 0
    assert step(subject, own, 8, 0.95, chooser) == wave[-1]


@pytest.mark.parametrize(("new_requests", "now", "steps", "freshness"), [(7, True, 4, 0.25), (8, False, 2, 0.75)])
def test_the_end_of_a_wave_says_nothing_of_the_next(
    new_requests: int, now: bool, steps: int, freshness: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted before half of a batch was replaced arrives later, and is told apart from what follows."""
    file = tmp_path / "trace.jsonl"
    subject, own = decider(file)
    receive = subject._histograms.receive
    late: deque[list[tuple[np.ndarray, tuple[int, Traffic, BatchStamp]]]] = deque([[]])

    def receive_later() -> list[tuple[np.ndarray, tuple[int, Traffic, BatchStamp]]]:
        late.append([(counts.copy(), tag) for counts, tag in receive()])
        return late.popleft()

    monkeypatch.setattr(subject._histograms, "receive", receive_later)
    chooser = np.random.default_rng(1)
    for i in range(2 + 3 * SEARCH_INTERVAL):
        if i == 2:
            subject.on_prefill(new_requests)
        step(subject, own, 16, 0.95, chooser)
    subject.on_prefill(0)
    assert subject._trace is not None
    subject._trace.close()
    seen = [one for record in Trace(file).records() for one in record.histograms]
    assert [one.current for one in seen] == [now, True]
    assert [one.freshness for one in seen] == pytest.approx([1, freshness])
    assert seen[0].histogram((2, DEPTHS, HISTOGRAM_BINS))[0, 0].sum() == steps * 16


def test_after_plain_steps_only_fresh_requests_say_what_drafts_are_worth() -> None:
    """A draft that became good is not missed because plain steps leave no first token: requests that begin show it."""
    subject, own = decider()
    chooser = np.random.default_rng(1)
    for _ in range(8 * FIT_INTERVAL):
        step(subject, own, 1, 0.02, chooser)
    assert step(subject, own, 1, 0.02, chooser) == 0
    plain = True
    lengths = []
    for i in range(800):
        if i in (400, 600):  # another request begins
            subject.on_prefill(1)
            own.reset_requests(torch.tensor([0]))
            plain = False
        lengths.append(step(subject, own, 1, NO_DRAFT if plain else 0.98, chooser))
        plain = lengths[-1] == 0  # a step without a draft leaves none for the next
    assert lengths[:400] == [0] * 400
    assert lengths[-100:] == [DEPTHS] * 100
