"""Compares policies on a recorded trace, by expected tokens per second.

All policies get the survivals and corrected costs that the server had in each step. The comparison is of expectations:
which drafts of another choice the target would have accepted is unknown. For each recorded step a policy is charged the
time that it expects for the same number of tokens.
"""

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
    """Sums over a trace for one policy: expected tokens of the recorded steps, and the expected seconds for them."""

    name: str
    tokens: float = 0.0
    seconds: float = 0.0
    verified: int = 0
    steps: Counter[str] = field(default_factory=Counter)

    def add(self, tokens: float, goodput: float, verified: int, label: str) -> None:
        """Add a recorded step, whose ``tokens`` the policy generates at ``goodput`` tokens per second."""
        self.tokens += tokens
        self.seconds += tokens / goodput
        self.verified += verified
        self.steps[label] += 1

    @property
    def goodput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Agreement:
    """Expected against actual values of the recorded steps."""

    expected_accepted: float = 0.0
    accepted: int = 0
    expected_seconds: float = 0.0
    """By the corrected profile."""
    profiled_seconds: float = 0.0
    """By the profile alone."""
    measured_seconds: float = 0.0
    expected_off: float = 0.0
    """Sum of absolute errors of single steps, with the correction."""
    profiled_off: float = 0.0
    """The same without it."""

    def add_time(self, expected: float, profiled: float, measured: float) -> None:
        """Add a measured step; all in seconds."""
        self.expected_seconds += expected
        self.profiled_seconds += profiled
        self.measured_seconds += measured
        self.expected_off += abs(expected - measured)
        self.profiled_off += abs(profiled - measured)


class ReplayedPolicy:
    """A policy that gets the updates of a recorded trace."""

    def __init__(self, trace: Trace) -> None:
        self._depths = max(trace.costs.steps)
        self._survivals = [Survivals(self._depths, trace.costs.steps, *known) for known in trace.means]
        self._traffic: int = Traffic.GREEDY
        self.policy = Policy(trace.costs, self._survivals[self._traffic])

    def learn(self, record: Record) -> None:
        """Take in what came before a choice; IndexError or ValueError if it cannot be."""
        for update in record.histograms:
            histogram = update.histogram((2, self._depths, HISTOGRAM_BINS))
            self._survivals[Traffic(update.traffic)].update(
                histogram, update.drafted, update.freshness, current=update.current
            )
        for mean in record.means:
            self._survivals[Traffic(mean.traffic)].set_prior(*np.array([mean.values, mean.accepted_ratio], np.float64))
        if record.traffic != self._traffic:
            self._traffic = Traffic(record.traffic)
            self.policy.switch_survivals(self._survivals[self._traffic])
        self.policy.add_new_requests(record.new_requests)

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
    evaluating, deciding = both = [ReplayedPolicy(trace) for _ in range(2)]
    table, agreement = _Table(trace.costs.steps), Agreement()
    count, expected = 0, 0.0
    for record in trace.records():
        for one in both:
            one.learn(record)
        _, outlook = evaluating.policy.evaluate(record.bs, record.kv_tokens)
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
    """The result as lines of a table, to be printed."""
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
