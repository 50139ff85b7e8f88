"""What the scheduler's thread does for TileSpec in a step: take in what has arrived, choose, send what comes next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.tilespec.calibration import Calibrations, FitTimer, Traffic
from tessera.tilespec.compiled import compiled
from tessera.tilespec.costs import CostTable
from tessera.tilespec.follower import Order
from tessera.tilespec.gain import Histogram, Stamp, Survivals
from tessera.tilespec.mailbox import Mailbox
from tessera.tilespec.policy import LOOK_INTERVAL, Choice, Policy
from tessera.tilespec.scores import Scores
from tessera.tilespec.stopwatch import Stopwatch
from tessera.tilespec.tally import Tally
from tessera.tilespec.trace import Mean, Record, Seen, TraceWriter

KEEP_INTERVAL = 64
"""Fits between two that are kept for the next start: half a minute or so. To write one is 20 ms of Python."""


@compiled("void(int32[:, :, ::1], int32[:, :, ::1], int32[:, :, ::1])")
def _take_new(grown: Histogram, received: Histogram, new: Histogram) -> None:
    """Write what has been counted since the last call, right also after it wrapped."""
    now, before, difference = grown.ravel(), received.ravel(), new.ravel()  # views
    for place in range(len(now)):
        difference[place] = now[place] - before[place]
        before[place] = now[place]


@dataclass(slots=True)
class _Learnt:
    """What came in since the last choice, for the trace."""

    seen: list[Seen] = field(default_factory=list)
    means: list[Mean] = field(default_factory=list)
    accepted: int | None = None


class _Step(NamedTuple):
    """A step that is timed."""

    choice: Choice
    disturbed: bool
    record: Record | None
    """For the trace."""


class Decider:
    """Chooses step after step, from statistics that are a step or two old.

    Args:
        costs: the profile of this server.
        scores: the device's side; its table is refitted from what it counts.
        calibrations: what is known of acceptance already.
        device: type of the device that runs the steps. Without a GPU ``costs`` are nominal, and no time corrects them.
        trace: a file to record every choice in; None records nothing.
        tally: counts every choice; None counts nothing.
        keep: is given what is known of acceptance now and then; must not wait.
        tell: is given every step, for the other ranks; None where there are none.
    """

    def __init__(
        self,
        costs: CostTable,
        scores: Scores,
        calibrations: Calibrations,
        device: str,
        trace: Path | None = None,
        tally: Tally | None = None,
        keep: Callable[[Calibrations], None] | None = None,
        tell: Callable[[Order], object] | None = None,
    ) -> None:
        self.calibrations = calibrations
        self._traffic = Traffic.GREEDY
        means = [(calibration.mean(), calibration.kept()) for calibration in calibrations]
        self._survivals = [Survivals(max(costs.steps), costs.steps, *known) for known in means]
        self.policy = Policy(costs, self._survivals[self._traffic])
        self._scores = scores
        self._histograms: Mailbox[tuple[int, Traffic, Stamp]] = Mailbox()
        self._received, self._new = np.zeros((2, *scores.histogram.shape), np.int32)
        self._unsent: tuple[int, Traffic] | None = None
        self._waiting = 0
        self._counts: Mailbox[Traffic] = Mailbox()
        self._watch: Stopwatch[_Step] = Stopwatch(device)
        self._corrects = device == "cuda"
        self._timers = [FitTimer() for _ in Traffic]
        self._fits = 0
        self._keep = keep
        self._tell = tell
        self._refits: list[tuple[Traffic, npt.NDArray[np.float32]]] = []
        self._joined = 0
        self._bs = 0
        self._trace = None if trace is None else TraceWriter(trace, costs, means)
        self._tally = tally
        self._learnt = _Learnt()

    def choose(self, bs: int, kv_tokens: int, traffic: Traffic = Traffic.GREEDY) -> Choice:
        """Decide the step that is about to begin, of ``bs`` requests with ``kv_tokens`` cached in all.

        Histograms and times change nothing until the policy looks at them, and wait until it does.
        """
        if traffic != self._traffic:
            self._traffic = traffic
            self._scores.use(traffic)
            self.policy.turn(self._survivals[traffic])
        if self._unsent is not None and self.policy.turns_over(bs):
            self._send_histogram(*self._unsent)  # now: what follows is of another batch
        held = self.policy.hold(bs, kv_tokens)
        self._learn(looks=held is None)
        self._timers[traffic].stepped()
        choice = held or self.policy.look(bs, kv_tokens)
        if self._tell is not None:
            self._tell(Order(choice, self._refits))
            self._refits = []
        if self._unsent is not None and self._unsent != (choice.steps, traffic):
            self._send_histogram(*self._unsent)  # now: from here on it is of other drafts
        joined, self._joined = self._joined, 0
        disturbed = joined > 0 or bs != self._bs
        self._bs = bs
        record = None
        if self._trace is not None:
            learnt, self._learnt = self._learnt, _Learnt()
            known = learnt.seen, learnt.means, learnt.accepted
            record = Record(bs, kv_tokens, choice, *known, None, joined, disturbed, traffic)
        self._watch.start(_Step(choice, disturbed, record))
        return choice

    def _learn(self, *, looks: bool) -> None:
        """Tell the policy what has arrived, if it looks now."""
        counts = self._counts.receive()
        if looks or counts:
            self._take_in_histograms()
            self._fit(counts)
        if looks:
            self._take_in_times()

    def interrupted(self, joined: int) -> None:
        """A prefill runs between two decode steps; after it ``joined`` requests more decode, whose drafts are whole."""
        self._joined += joined
        self.policy.join(joined)
        untimed = self._watch.interrupt()
        self._take_in_times()
        self._ended(untimed)
        if self._tally is not None:
            self._tally.flush()

    def drafted(self, steps: int) -> None:
        """A draft of ``steps`` tokens was verified in part or in full, and its outcome observed, on this stream."""
        self._unsent = steps, self._traffic
        self._waiting += 1
        if self.policy.wants_news or self._waiting == LOOK_INTERVAL:  # prefills may have it look at other times
            self._send_histogram(*self._unsent)
        if self._timers[self._traffic].drafted():
            self._counts.send(self._scores.model.counts, self._traffic)

    def _send_histogram(self, steps: int, traffic: Traffic) -> None:
        stamp = self._survivals[traffic].stamp(self._waiting)
        self._histograms.send(self._scores.histogram, (steps, traffic, stamp))
        self._unsent, self._waiting = None, 0

    def _take_in_histograms(self) -> None:
        for grown, (steps, traffic, stamp) in self._histograms.receive():
            _take_new(grown, self._received, self._new)
            survivals = self._survivals[traffic]
            now = survivals.is_of_now(stamp)
            survivals.update(self._new, steps, stamp.young, now=now)
            if self._trace is not None:
                self._learnt.seen.append(Seen.of(self._new, steps, traffic, stamp.young, now=now))

    def _fit(self, received: list[tuple[npt.NDArray[np.int32], Traffic]]) -> None:
        for counts, traffic in received:
            calibration = self.calibrations[traffic]
            accepted = calibration.absorb(counts)
            mean, kept = calibration.mean(), calibration.kept()
            self._survivals[traffic].assume(mean, kept)
            table = calibration.logits()
            self._scores.refit(traffic, table)
            if self._tell is not None:
                self._refits.append((traffic, table))
            if self._tally is not None:
                self._tally.accept(accepted)
            if self._trace is not None:
                self._learnt.means.append(Mean(mean.tolist(), kept.tolist(), traffic))
                self._learnt.accepted = (self._learnt.accepted or 0) + accepted
            self._fits += 1
            if self._keep is not None and self._fits % KEEP_INTERVAL == 0:
                greedy, sampled = self.calibrations
                self._keep((greedy.copy(), sampled.copy()))

    def _take_in_times(self) -> None:
        for seconds, step in self._watch.receive():
            if self._corrects:
                self.policy.observe(step.choice, seconds, disturbed=step.disturbed)
            self._ended(step, seconds)

    def _ended(self, step: _Step | None, seconds: float | None = None) -> None:
        """Count and record a step; None is none."""
        if step is None:
            return
        if self._tally is not None:
            self._tally.add(step.choice, seconds)
        if self._trace is not None and step.record is not None:
            self._trace.write(replace(step.record, measured=seconds))
