"""What each policy would have chosen on a recorded trace, and what it would have promised.

All policies see the same survivals and the same corrected costs, step by step, as they were when the trace was
recorded. What is compared is what they promise, not what they would have got: nobody knows which drafts of another
choice the target would have accepted. Each is given the tokens of the recorded steps, and takes its time for them: a
policy of longer steps would take fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tessera.tilespec.calibration import Traffic
from tessera.tilespec.costs import Array
from tessera.tilespec.gain import Survivals
from tessera.tilespec.policy import Choice, Policy
from tessera.tilespec.trace import Record, Trace
from tessera_kernels.ops.learning.histogram import HISTOGRAM_BINS


@dataclass
class Outcome:
    """Sums over a trace for one policy: the tokens that the recorded steps promise, and its seconds for them."""

    name: str
    tokens: float = 0.0
    seconds: float = 0.0
    verified: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    def add(self, tokens: float, goodput: float, verified: int, label: str) -> None:
        """In the place of one recorded step, whose ``tokens`` it makes with so many in a second."""
        self.tokens += tokens
        self.seconds += tokens / goodput
        self.verified += verified
        self.steps[label] += 1

    @property
    def goodput(self) -> float:
        """Tokens in a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Agreement:
    """What was expected of the steps that ran, and what came of them."""

    expected_accepted: float = 0.0
    accepted: int = 0
    expected_seconds: float = 0.0
    """By the profile as it was corrected until then."""
    profiled_seconds: float = 0.0
    """By the profile alone."""
    measured_seconds: float = 0.0
    expected_off: float = 0.0
    """Seconds by which single steps were off, early or late, in sum; with the correction."""
    profiled_off: float = 0.0
    """The same without it."""

    def add_time(self, expected: float, profiled: float, measured: float) -> None:
        """One step that was measured, seconds."""
        self.expected_seconds += expected
        self.profiled_seconds += profiled
        self.measured_seconds += measured
        self.expected_off += abs(expected - measured)
        self.profiled_off += abs(profiled - measured)


class Follower:
    """A policy that is told what the server's was told."""

    def __init__(self, trace: Trace) -> None:
        self._depths = max(trace.costs.steps)
        self._survivals = [Survivals(self._depths, trace.costs.steps, *known) for known in trace.means]
        self._traffic: int = Traffic.GREEDY
        self.policy = Policy(trace.costs, self._survivals[self._traffic])

    def learn(self, record: Record) -> None:
        """Take in what came before a choice; IndexError or ValueError if it cannot be."""
        for seen in record.seen:
            histogram = seen.histogram((2, self._depths, HISTOGRAM_BINS))
            self._survivals[Traffic(seen.traffic)].update(histogram, seen.drafted, seen.young, now=seen.now)
        for mean in record.means:
            self._survivals[Traffic(mean.traffic)].assume(*np.array([mean.values, mean.kept], np.float64))
        if record.traffic != self._traffic:
            self._traffic = Traffic(record.traffic)
            self.policy.turn(self._survivals[self._traffic])
        self.policy.join(record.joined)

    def time(self, record: Record) -> None:
        """Take in how long the step took."""
        if record.measured is not None:
            self.policy.observe(record.choice, record.measured, disturbed=record.disturbed)


@dataclass
class Replay:
    """The result: one outcome for each policy, and how far expectations were right."""

    outcomes: list[Outcome]
    agreement: Agreement
    records: int
    """Steps that were compared."""


class _Table:
    """The outcomes, in the order in which they are shown."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = steps
        self._static = [Outcome("no speculation" if s == 0 else f"static k={s}") for s in steps]
        self._uniform, self._tilespec, self._recorded = map(Outcome, ("best uniform", "tilespec", "recorded"))

    @property
    def outcomes(self) -> list[Outcome]:
        return [*self._static, self._uniform, self._tilespec, self._recorded]

    def add(self, record: Record, goodput: Array, again: Choice) -> None:
        """One step: what was recorded, tokens in a second of each uniform width, and what is chosen now."""
        bs, made = record.bs, record.bs + record.choice.gain
        uniform = list(zip(goodput.tolist(), self._steps, strict=True))
        for outcome, (rate, steps) in zip((*self._static, self._uniform), (*uniform, max(uniform)), strict=True):
            outcome.add(made, rate, bs * (steps + 1), str(steps))
        for outcome, choice in ((self._tilespec, again), (self._recorded, record.choice)):
            label = f"{choice.steps}{'' if choice.tier is None else ' ragged'}"
            outcome.add(made, (bs + choice.gain) / choice.seconds, choice.tokens, label)


def replay(trace: Trace, requests: int | None = None) -> Replay:
    """Go through a trace.

    Args:
        trace: all of it is learnt from.
        requests: compare steps of so many requests only; None compares all. What was accepted is read for some steps
            together, and compared for all only.

    Raises:
        ValueError: the trace is damaged.
    """
    # One looks in every step, the other decides, which looks when it likes: what came in between counts as one.
    watching, deciding = both = [Follower(trace) for _ in range(2)]
    table, agreement = _Table(trace.costs.steps), Agreement()
    count, expected = 0, 0.0
    for record in trace.records():
        for one in both:
            one.learn(record)
        _, outlook = watching.policy.evaluate(record.bs, record.kv_tokens)
        again = deciding.policy.choose(record.bs, record.kv_tokens)
        if requests in (None, record.bs):
            count += 1
            table.add(record, outlook.goodput[:, 0], again)
            if record.measured is not None:
                agreement.add_time(record.choice.seconds, record.choice.profiled, record.measured)
        if record.accepted is not None and requests is None:
            agreement.expected_accepted += expected
            agreement.accepted += record.accepted
            expected = 0.0
        expected += record.choice.gain
        for one in both:
            one.time(record)
    return Replay(table.outcomes, agreement, count)


def table(result: Replay) -> Iterator[str]:
    """Lines to print."""
    base = result.outcomes[0].goodput
    width = max(len(outcome.name) for outcome in result.outcomes)
    yield f"{'policy':{width}}  tok/s expected  over none  verified/step  steps"
    for outcome in result.outcomes:
        shares = ", ".join(f"{label}: {n / result.records:.0%}" for label, n in outcome.steps.most_common(4))
        over = outcome.goodput / base if base else 0.0
        verified = outcome.verified / result.records
        yield f"{outcome.name:{width}}  {outcome.goodput:14,.0f}  {over:8.3f}x  {verified:13.1f}  {shares}"
    met = result.agreement
    if met.expected_accepted:
        yield f"accepted draft tokens: {met.accepted:,}, expected {met.expected_accepted:,.0f}"
    if met.measured_seconds:
        yield f"time of measured steps: {met.measured_seconds:.3f} s"
        for name, total, off in (
            ("profile", met.profiled_seconds, met.profiled_off),
            ("corrected while serving", met.expected_seconds, met.expected_off),
        ):
            yield f"  {name}: {total:.3f} s, a step is off by {off / met.measured_seconds:.1%} of its time"
