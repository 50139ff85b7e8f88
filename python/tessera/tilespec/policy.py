"""Choose the draft steps and the verify tier of the next step: the exact maximum of the expected goodput.

Goodput is ``(bs + gain) / seconds``: each request gets one token from the target in any case, and ``gain`` accepted
draft tokens in addition. For ``s`` draft steps and ``m`` verified tokens, the best choice is the ``m - bs`` most likely
draft tokens. A token is never likelier than those before it, so they form prefixes. Only the sizes of CUDA graphs are
candidates for ``m``, as any size between two costs as much as the greater. So the maximum over a few dozen pairs is
exact.
"""

from typing import NamedTuple

import numpy as np

from tessera.tilespec.costs import KNOWN_AFTER, Array, Correction, CostTable
from tessera.tilespec.estimates import best, best_untimed, estimate
from tessera.tilespec.gain import Survivals, is_new_batch
from tessera.tilespec.options import Estimates, Options, OptionTable

RAGGED_ADVANTAGE = 1.02
"""Goodput that a ragged step needs, relative to the best uniform one: it costs more than the profile measures."""
SWITCH_EVIDENCE = 0.02
"""Advantage that another number of draft steps needs, summed over consecutive searches (2 % once, or 1 % twice), as
estimates are noisy."""
PLAIN_EVIDENCE = 0.1
"""The same for a switch to plain decoding, after which requests draft worse until they end."""
SEARCH_INTERVAL = 4
"""Steps between two searches of all options while the batch hardly changes: a search takes as long as the launch of
several kernels. For a single request each step searches, as its acceptance changes from one line to the next."""
CHANGED_BATCH_DIVISOR = 8
"""A batch has changed if one in so many requests has come or gone since the last search. Under steady traffic a few
come or go in nearly every step."""
COUNT_LAG = 2
"""Steps until counts of the device have arrived: the scheduler is so far ahead of it."""
EXPLORATION_BUDGET = 0.01
"""Share of the time that explorations may lose."""
PLAIN_EXPLORATION_BUDGET = 0.005
"""The same during plain decoding, so that a useless draft model costs next to nothing."""
PER_REQUEST_EXPLORATION_BUDGET = 0.01
"""Added to it for each request of the batch, divided by the batch size. Without it a single client, whose requests come
one after the other, spent half of its time without drafts after one request that drafts badly."""
EXPLORATION_INTERVAL = 64
"""Least number of steps between two explorations."""
TRIAL_INTERVAL = 4
"""Least number of steps between two trials of options that were not timed yet: times arrive two steps late."""
TRIAL_MIN_GOODPUT = 0.95
"""Expected goodput that a trial needs, relative to the best option: profiles are hardly further off, and lower values
lose more than they find (`benchmarks/results/current/2026-11-25-cpu/tilespec-simulation.txt`)."""
MAX_TRIAL_CREDIT = 0.5
"""Most time saved for trials, in steps."""
EXPLORATION_BURST = 8
"""Steps of an exploration that leaves plain decoding. Plain steps do not run the draft model, so its KV cache has holes
and there is no first token: only new requests show how good drafts are."""


def _interval(bs: int) -> int:
    """Steps between two searches for a batch of ``bs`` requests."""
    return 1 if bs == 1 else SEARCH_INTERVAL


class Choice(NamedTuple):
    """What the next step does."""

    steps: int
    """Draft steps, or drafted nodes of a tree; 0 is plain decoding."""
    tier: int | None
    """Tokens of the ragged graph; None is a uniform step of width ``steps + 1``."""
    tokens: int
    """Verified tokens of the batch, with one anchor for each request: ``min(tier, bs * (steps + 1))``."""
    gain: float
    """Expected accepted draft tokens of the batch."""
    profiled: float
    """Seconds by the profile, for `Policy.observe`."""
    seconds: float
    """Seconds expected, corrected."""
    kind: int
    """The kind of step, for `Policy.observe`."""
    exploring: bool = False
    """Whether it was chosen to learn from it, and not for its goodput."""


class LastSearch(NamedTuple):
    """The batch size, the row and the choice of the last search."""

    bs: int
    row: int
    choice: Choice


class Policy:
    """Chooses for each step; deterministic in its inputs.

    Args:
        costs: the cost profile.
        survivals: the acceptance statistics, updated by the caller, for the same ``costs.steps``.
    """

    def __init__(self, costs: CostTable, survivals: Survivals) -> None:
        self.costs = costs
        self.survivals = survivals
        self.steps = costs.steps
        self._kv_seconds = np.array([costs.kv_seconds[steps] for steps in costs.steps])
        self._options = OptionTable(costs)
        self.correction = Correction(self._options.kinds)
        self._present = 0
        self._evidence = 0.0
        self._credit = 0.0
        self._since_exploration = 0
        self._trial_credit = 0.0
        self._since_trial = 0
        self._plain_trial = 0
        self._burst = 0
        self._last: LastSearch | None = None
        self._elapsed = 0
        self._new_requests = 0

    def choose(self, bs: int, kv_tokens: int) -> Choice:
        """The best option, or an exploration. In most steps that of the last search: see `SEARCH_INTERVAL`.

        Args:
            bs: requests of the batch, at least 1.
            kv_tokens: their tokens in the KV cache, in all.
        """
        return self.reuse(bs, kv_tokens) or self.search(bs, kv_tokens)

    def reuse(self, bs: int, kv_tokens: int) -> Choice | None:
        """The option of the last search, for this batch; None if another search is due."""
        last = self._last
        if last is None or self.needs_search(bs):
            return None
        self._elapsed += 1
        size, row, choice = last
        if bs == size:
            return choice
        options = self._options.of(bs)
        column = options.column(row, choice.tier)
        kind = int(options.kinds[row, column])
        profiled = float(options.seconds[row, column] + kv_tokens * self._kv_seconds[row])
        return choice._replace(
            tokens=int(options.tokens[row, column]),
            gain=choice.gain * bs / size,
            profiled=profiled,
            seconds=profiled * self.correction.factor(kind),
            kind=kind,
        )

    def search(self, bs: int, kv_tokens: int) -> Choice:
        """Search all options: the best one, or an exploration."""
        self._elapsed += 1
        fresh = self._new_requests > 0
        options, estimates = self.evaluate(bs, kv_tokens)
        profiled, seconds, gain, goodput = estimates
        row, column = self._best(goodput)
        self._present = row  # also if an exploration replaces it, which must not undo a switch
        row, column, exploring = self._explore(row, column, estimates, bs, fresh=fresh)
        if not row:
            self._plain_trial = 0
        elif not exploring:
            row, column, exploring = self._trial(row, column, estimates, options)
        self._elapsed = 0
        choice = Choice(
            self.steps[row],
            int(options.tiers[column - 1]) if column else None,
            int(options.tokens[row, column]),
            float(gain[row, column]),
            float(profiled[row, column]),
            float(seconds[row, column]),
            int(options.kinds[row, column]),
            exploring,
        )
        self._last = None if exploring else LastSearch(bs, row, choice)
        return choice

    def needs_search(self, bs: int) -> bool:
        """Whether the next choice searches all options.

        Plain decoding is only left directly after a prefill, so each prefill is followed by a search.
        """
        last = self._last
        if last is None or self._elapsed + 1 >= _interval(last.bs):
            return True
        if not last.row:
            return self._new_requests > 0 or bs != last.bs
        changed = max(abs(bs - last.bs), self._new_requests)
        if changed * CHANGED_BATCH_DIVISOR >= last.bs:
            return True
        return bs != last.bs and self._options.of(bs).column(last.row, last.choice.tier) is None

    @property
    def wants_counts(self) -> bool:
        """Whether counts that are copied after this step arrive in time for the next search."""
        last = self._last
        return last is None or self._elapsed == max(_interval(last.bs) - COUNT_LAG, 0)

    def switch_survivals(self, survivals: Survivals) -> None:
        """Use the statistics of another kind of traffic from now on. The next choice searches."""
        self.survivals = survivals
        self._last = None
        self._evidence = PLAIN_EVIDENCE

    def add_new_requests(self, new_requests: int) -> None:
        """So many requests decode after a prefill; the next search takes them into account."""
        self._new_requests += new_requests

    def is_new_batch(self, bs: int) -> bool:
        """Whether so many requests are new since the last search that older counts are of another batch."""
        return is_new_batch(self._new_requests, bs)

    def evaluate(self, bs: int, kv_tokens: int) -> tuple[Options, Estimates]:
        """All options and their estimates. New requests count with the acceptance that requests have at first."""
        if self._new_requests:
            self.survivals.add_new_requests(self._new_requests, bs)
            if self.is_new_batch(bs):
                self._evidence = PLAIN_EVIDENCE
            self._new_requests = 0
        options = self._options.of(bs)
        return options, estimate(bs, kv_tokens, options, self._kv_seconds, self.correction, self.survivals)

    def observe(self, choice: Choice, measured: float, *, disturbed: bool = False) -> None:
        """Correct the profile by the time that a chosen step took: `tessera.tilespec.costs.Correction.observe`.

        Args:
            choice: the step's choice.
            measured: seconds from its start to the start of the next step.
            disturbed: whether requests came or went directly before.
        """
        self.correction.observe(choice.kind, choice.profiled, measured, disturbed=disturbed)

    def _best(self, goodput: Array) -> tuple[int, int]:
        """Row and column of the best option, with hysteresis."""
        row, column = best(goodput, RAGGED_ADVANTAGE)
        if row != self._present:
            stay = goodput[self._present : self._present + 1]
            _, stay_column = best(stay, RAGGED_ADVANTAGE)
            advantage = float(goodput[row, column] / stay[0, stay_column]) - 1
            self._evidence = max(self._evidence + advantage, 0.0)
            if self._evidence < (SWITCH_EVIDENCE if row else PLAIN_EVIDENCE):
                return self._present, stay_column
        self._evidence = 0.0
        return row, column

    def _explore(self, row: int, column: int, estimates: Estimates, bs: int, *, fresh: bool) -> tuple[int, int, bool]:
        """Replace the choice by the full width of the next greater number of steps, if the budget covers the loss.

        Without it nothing is learnt of unlikely tokens, of deeper ones, and, in plain decoding, of any.
        """
        self._burst = max(self._burst - 1, 0) if row == 0 else 0
        if self._burst:
            return 1, 0, True
        other = min(row + 1, len(self.steps) - 1)
        if (other, 0) == (row, column):
            return row, column, False  # that is the full width of the most steps already
        _, seconds, gain, _ = estimates
        chosen = float(seconds[row, column])
        worth = (bs + float(gain[other, 0])) * chosen / (bs + float(gain[row, column]))
        loss = max(float(seconds[other, 0]) - worth, 0.0) * (1 if row else EXPLORATION_BURST)
        share = EXPLORATION_BUDGET if row else PLAIN_EXPLORATION_BUDGET + PER_REQUEST_EXPLORATION_BUDGET / bs
        self._credit = min(self._credit + share * chosen * self._elapsed, loss)
        self._since_exploration += self._elapsed
        if self._since_exploration < EXPLORATION_INTERVAL or self._credit < loss or not (row or fresh):
            return row, column, False
        self._credit = 0.0
        self._since_exploration = 0
        self._burst = 0 if row else EXPLORATION_BURST
        return other, 0, True

    def _trial(self, row: int, column: int, estimates: Estimates, options: Options) -> tuple[int, int, bool]:
        """Replace the choice by the best option that was hardly timed yet, if the budget covers the loss.

        An option that is never chosen keeps the profile's time, and is never chosen if that is too long. Plain decoding
        is tried once, for as many steps as it takes to time it: it leaves requests without a draft, and holes in the
        draft model's KV cache.
        """
        if self._plain_trial:
            self._plain_trial -= 1
            return 0, 0, True
        _, seconds, _, goodput = estimates
        present = float(seconds[row, column])
        earned = EXPLORATION_BUDGET * present * self._elapsed
        self._trial_credit = min(self._trial_credit + earned, MAX_TRIAL_CREDIT * present)
        self._since_trial += self._elapsed
        if self._since_trial < TRIAL_INTERVAL or self.correction.measured[options.kinds[row, column]] < KNOWN_AFTER:
            return row, column, False
        present_goodput = float(goodput[row, column])
        least = TRIAL_MIN_GOODPUT * present_goodput
        other, size = best_untimed(goodput, options.kinds, self.correction.measured, KNOWN_AFTER, least)
        if other < 0:
            return row, column, False
        loss = float(seconds[other, size] * max(1 - goodput[other, size] / present_goodput, 0))
        loss *= 1 if other else KNOWN_AFTER + 1
        if self._trial_credit < loss:
            return row, column, False
        self._trial_credit -= loss
        self._since_trial = 0
        self._plain_trial = 0 if other else KNOWN_AFTER - 1
        return other, size, True
