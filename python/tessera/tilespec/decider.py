"""TileSpec's decision for each step, on the scheduler's thread: receive statistics, choose, copy the next ones."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.tilespec.calibration import Calibrations, FitTimer, Traffic
from tessera.tilespec.compiled import compiled
from tessera.tilespec.costs import CostTable
from tessera.tilespec.follower import StepDecision
from tessera.tilespec.gain import BatchStamp, Histogram, Survivals
from tessera.tilespec.host_copies import HostCopyQueue
from tessera.tilespec.policy import SEARCH_INTERVAL, Choice, Policy
from tessera.tilespec.scores import Scores
from tessera.tilespec.stopwatch import Stopwatch
from tessera.tilespec.tally import Tally
from tessera.tilespec.trace import HistogramUpdate, MeanUpdate, Record, TraceWriter

SAVE_INTERVAL = 64
"""Fits between two that are saved for the next start: about half a minute. Writing one takes 20 ms of Python."""


@compiled("void(int32[:, :, ::1], int32[:, :, ::1], int32[:, :, ::1])")
def _increments(grown: Histogram, received: Histogram, new: Histogram) -> None:
    """Write what has been counted since the last call. The difference is right after an overflow as well."""
    now, before, difference = grown.ravel(), received.ravel(), new.ravel()  # views
    for place in range(len(now)):
        difference[place] = now[place] - before[place]
        before[place] = now[place]


@dataclass(slots=True)
class _TraceUpdates:
    """The statistics received since the last choice, for the trace."""

    histograms: list[HistogramUpdate] = field(default_factory=list)
    means: list[MeanUpdate] = field(default_factory=list)
    accepted: int | None = None


class _Step(NamedTuple):
    """A step that is being timed, with its record for the trace."""

    choice: Choice
    disturbed: bool
    record: Record | None


class Decider:
    """Makes a `Choice` for each step, from statistics that are one or two steps old.

    Args:
        costs: the cost profile of this server.
        scores: the device's tensors; their acceptance table is refitted from their counts.
        calibrations: the calibrations to start from.
        device: type of the device that runs the steps. Measured times correct the costs on "cuda" only: without a GPU
            ``costs`` are nominal.
        trace: the file to record each choice in.
        tally: the metrics of the choices.
        save: called with copies of the calibrations every `SAVE_INTERVAL` fits; must not block.
        broadcast: sends each decision to the other tensor-parallel ranks.
    """

    def __init__(
        self,
        costs: CostTable,
        scores: Scores,
        calibrations: Calibrations,
        device: str,
        trace: Path | None = None,
        tally: Tally | None = None,
        save: Callable[[Calibrations], None] | None = None,
        broadcast: Callable[[StepDecision], object] | None = None,
    ) -> None:
        self.calibrations = calibrations
        self._traffic = Traffic.GREEDY
        means = [(calibration.mean(), calibration.accepted_ratio()) for calibration in calibrations]
        self._survivals = [Survivals(max(costs.steps), costs.steps, *known) for known in means]
        self.policy = Policy(costs, self._survivals[self._traffic])
        self._scores = scores
        self._histograms: HostCopyQueue[tuple[int, Traffic, BatchStamp]] = HostCopyQueue()
        self._received, self._new = np.zeros((2, *scores.histogram.shape), np.int32)
        self._uncopied: tuple[int, Traffic] | None = None
        self._uncopied_steps = 0
        self._counts: HostCopyQueue[Traffic] = HostCopyQueue()
        self._stopwatch: Stopwatch[_Step] = Stopwatch(device)
        self._corrects_costs = device == "cuda"
        self._timers = [FitTimer() for _ in Traffic]
        self._fits = 0
        self._save = save
        self._broadcast = broadcast
        self._refits: list[tuple[Traffic, npt.NDArray[np.float32]]] = []
        self._new_requests = 0
        self._bs = 0
        self._trace = None if trace is None else TraceWriter(trace, costs, means)
        self._tally = tally
        self._updates = _TraceUpdates()

    def choose(self, bs: int, kv_tokens: int, traffic: Traffic = Traffic.GREEDY) -> Choice:
        """Choose for the step that is about to begin.

        Histograms and times are received only in steps in which the policy searches all options.

        Args:
            bs: requests of the batch.
            kv_tokens: their tokens in the KV cache, in all.
            traffic: whether they are greedy or sampled.
        """
        if traffic != self._traffic:
            self._traffic = traffic
            self._scores.use(traffic)
            self.policy.switch_survivals(self._survivals[traffic])
        if self._uncopied is not None and self.policy.is_new_batch(bs):
            self._send_histogram(*self._uncopied)  # the next counts are of another batch
        reused = self.policy.reuse(bs, kv_tokens)
        self._learn(searches=reused is None)
        self._timers[traffic].on_step()
        choice = reused or self.policy.search(bs, kv_tokens)
        if self._broadcast is not None:
            self._broadcast(StepDecision(choice, self._refits))
            self._refits = []
        if self._uncopied is not None and self._uncopied != (choice.steps, traffic):
            self._send_histogram(*self._uncopied)  # the next counts are of drafts of another length
        new_requests, self._new_requests = self._new_requests, 0
        disturbed = new_requests > 0 or bs != self._bs
        self._bs = bs
        record = None
        if self._trace is not None:
            updates, self._updates = self._updates, _TraceUpdates()
            known = updates.histograms, updates.means, updates.accepted
            record = Record(bs, kv_tokens, choice, *known, None, new_requests, disturbed, traffic)
        self._stopwatch.start(_Step(choice, disturbed, record))
        return choice

    def _learn(self, *, searches: bool) -> None:
        """Update the policy from the statistics that have arrived, in a step in which it searches."""
        counts = self._counts.receive()
        if searches or counts:
            self._receive_histograms()
            self._fit(counts)
        if searches:
            self._receive_times()

    def on_prefill(self, new_requests: int) -> None:
        """A prefill runs before the next decode step.

        Args:
            new_requests: requests that decode from then on; the draft model has their whole prompt.
        """
        self._new_requests += new_requests
        self.policy.add_new_requests(new_requests)
        untimed = self._stopwatch.interrupt()
        self._receive_times()
        self._finish(untimed)
        if self._tally is not None:
            self._tally.flush()

    def on_verify(self, steps: int) -> None:
        """A draft of ``steps`` tokens was verified, all of it or a part, and counted, on the current stream."""
        self._uncopied = steps, self._traffic
        self._uncopied_steps += 1
        overdue = self._uncopied_steps == SEARCH_INTERVAL  # after a prefill the policy searches at other times
        if self.policy.wants_counts or overdue:
            self._send_histogram(*self._uncopied)
        if self._timers[self._traffic].on_verify():
            self._counts.send(self._scores.model.counts, self._traffic)

    def _send_histogram(self, steps: int, traffic: Traffic) -> None:
        stamp = self._survivals[traffic].stamp(self._uncopied_steps)
        self._histograms.send(self._scores.histogram, (steps, traffic, stamp))
        self._uncopied, self._uncopied_steps = None, 0

    def _receive_histograms(self) -> None:
        for grown, (steps, traffic, stamp) in self._histograms.receive():
            _increments(grown, self._received, self._new)
            survivals = self._survivals[traffic]
            current = survivals.is_current(stamp)
            survivals.update(self._new, steps, stamp.freshness, current=current)
            if self._trace is not None:
                self._updates.histograms.append(
                    HistogramUpdate.of(self._new, steps, traffic, stamp.freshness, current=current)
                )

    def _fit(self, received: list[tuple[npt.NDArray[np.int32], Traffic]]) -> None:
        for counts, traffic in received:
            calibration = self.calibrations[traffic]
            accepted = calibration.update(counts)
            mean, ratio = calibration.mean(), calibration.accepted_ratio()
            self._survivals[traffic].set_prior(mean, ratio)
            table = calibration.logits()
            self._scores.refit(traffic, table)
            if self._broadcast is not None:
                self._refits.append((traffic, table))
            if self._tally is not None:
                self._tally.accept(accepted)
            if self._trace is not None:
                self._updates.means.append(MeanUpdate(mean.tolist(), ratio.tolist(), traffic))
                self._updates.accepted = (self._updates.accepted or 0) + accepted
            self._fits += 1
            if self._save is not None and self._fits % SAVE_INTERVAL == 0:
                greedy, sampled = self.calibrations
                self._save((greedy.copy(), sampled.copy()))

    def _receive_times(self) -> None:
        for seconds, step in self._stopwatch.receive():
            if self._corrects_costs:
                self.policy.observe(step.choice, seconds, disturbed=step.disturbed)
            self._finish(step, seconds)

    def _finish(self, step: _Step | None, seconds: float | None = None) -> None:
        """Add a step that has ended to the metrics and to the trace."""
        if step is None:
            return
        if self._tally is not None:
            self._tally.add(step.choice, seconds)
        if self._trace is not None and step.record is not None:
            self._trace.write(replace(step.record, measured=seconds))
