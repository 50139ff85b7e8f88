"""Choose the draft steps and the verify tier of the next step: the exact maximum of the expected goodput.

Goodput is ``(bs + gain) / seconds``: each request gets one token from the target anyhow, and ``gain`` draft tokens are
accepted besides. For ``s`` draft steps and ``m`` verified tokens the best choice are the ``m - bs`` most likely draft
tokens (a token is never likelier than those before it, so they form prefixes), and only sizes of graphs need be looked
at: what lies between two costs as much as the greater. So the maximum over a few dozen pairs is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tessera.tilespec.costs import FIRST, Array, Correction, CostTable
from tessera.tilespec.gain import Survivals, another_batch
from tessera.tilespec.options import Options, OptionTable, Outlook
from tessera.tilespec.outlook import best, look, unknown

RAGGED_ADVANTAGE = 1.02
"""A ragged step must promise this much over the best uniform one: it costs more than the profile sees."""
SWITCH_EVIDENCE = 0.02
"""Other draft steps must promise this much over the present ones, summed over consecutive looks: 2 % once, 1 % twice.
Survivals are estimates and jitter; an advantage that is small but stays is taken all the same."""
PLAIN_EVIDENCE = 0.1
"""The same for no drafts at all: requests that went through plain steps draft worse to their end."""
LOOK_INTERVAL = 4
"""Steps between two looks at all options while the batch hardly changes. What is known changes slowly, and a look takes
as much of the scheduler's thread as it takes to launch several kernels. One request alone is looked at in every step: a
text changes from one line to the next, and others do not make up for it."""
UNCHANGED_PART = 8
"""A batch of which less than one in so many has come or gone since the last look has hardly changed: under steady
traffic some come or go in nearly every step."""
NEWS_LAG = 2
"""Steps that what the device has counted takes to arrive: the scheduler is so far ahead of it."""
EXPLORED_SHARE = 0.01
"""Time that may be lost to looking at what is not chosen."""
EXPLORED_SHARE_OF_PLAIN = 0.005
"""The same where nothing is drafted: an operator whose draft is useless should hardly notice it."""
EXPLORED_SHARE_OF_ONE = 0.01
"""As much more as one request is of the batch. Requests differ, and drafts that are no use for one are for the next: a
single client, whose requests come one by one, spent half of its time without drafts after one bad request."""
EXPLORATION_INTERVAL = 64
"""Steps between two explorations, at least."""
TRIAL_INTERVAL = 4
"""Steps between two trials of what was never timed, at least: times come two steps late."""
PROMISE = 0.95
"""The goodput that must be expected of a trial, of the best option's. Profiles are hardly further off: with less,
more is lost in trials than is found (`benchmarks/results/current/2026-11-25-cpu/tilespec-simulation.txt`)."""
MOST_SAVED = 0.5
"""What may be saved up for trials, in steps."""
BURST = 8
"""Steps of an exploration that leaves plain decoding. Plain steps do not run the draft model, so that its KV cache has
holes and there is no first token: only requests that have just begun show what drafts are worth."""


def _interval(bs: int) -> int:
    """Steps between two looks at ``bs`` requests."""
    return 1 if bs == 1 else LOOK_INTERVAL


class Choice(NamedTuple):
    """What the next step does."""

    steps: int
    """Draft steps, or drafted nodes of a tree; 0 is plain decoding."""
    tier: int | None
    """Tokens of the ragged graph; None is a uniform step of width ``steps + 1``."""
    tokens: int
    """Tokens to verify in all, anchors included: ``min(tier, bs * (steps + 1))``."""
    gain: float
    """Expected accepted draft tokens of the batch."""
    profiled: float
    """Seconds by the profile, for `Policy.observe`."""
    seconds: float
    """Seconds expected, corrected."""
    kind: int
    """The kind of step, for `Policy.observe`."""
    exploring: bool = False
    """Chosen to learn, not to win."""


class Held(NamedTuple):
    """What was chosen at the last look."""

    bs: int
    row: int
    choice: Choice


class Policy:
    """Chooses for step after step; deterministic in what it is given, so ranks that are given the same agree.

    Args:
        costs: the profile.
        survivals: what drafts promise; updated by the caller, for the same ``costs.steps``.
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
        self._held: Held | None = None
        self._elapsed = 0
        self._joined = 0

    def choose(self, bs: int, kv_tokens: int) -> Choice:
        """The best option for ``bs`` requests with ``kv_tokens`` cached in all, or now and then an exploration.

        The same as before in most steps: see `LOOK_INTERVAL`.

        Args:
            bs: requests, at least 1.
            kv_tokens: tokens of theirs in the KV cache.
        """
        return self.hold(bs, kv_tokens) or self.look(bs, kv_tokens)

    def hold(self, bs: int, kv_tokens: int) -> Choice | None:
        """The option of the last look; None where it is time for another one."""
        held = self._held
        if held is None or self.looks(bs):
            return None
        self._elapsed += 1
        size, row, choice = held
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

    def look(self, bs: int, kv_tokens: int) -> Choice:
        """The best of all options, or an exploration."""
        self._elapsed += 1
        fresh = self._joined > 0
        options, outlook = self.evaluate(bs, kv_tokens)
        profiled, seconds, gain, goodput = outlook
        row, column = self._best(goodput)
        self._present = row  # also where something else is looked at instead: that must not undo a switch
        row, column, exploring = self._explore(row, column, outlook, bs, fresh=fresh)
        if not row:
            self._plain_trial = 0
        elif not exploring:
            row, column, exploring = self._try(row, column, outlook, options)
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
        self._held = None if exploring else Held(bs, row, choice)
        return choice

    def looks(self, bs: int) -> bool:
        """Whether the next choice looks at all options; where it does not, what was learnt can wait.

        Plain decoding is left directly after a prefill or not at all, so there each one is looked at.
        """
        held = self._held
        if held is None or self._elapsed + 1 >= _interval(held.bs):
            return True
        if not held.row:
            return self._joined > 0 or bs != held.bs
        changed = max(abs(bs - held.bs), self._joined)
        if changed * UNCHANGED_PART >= held.bs:
            return True
        return bs != held.bs and self._options.of(bs).column(held.row, held.choice.tier) is None

    @property
    def wants_news(self) -> bool:
        """Whether what the device has counted up to this step should be sent: it arrives for the next look."""
        held = self._held
        return held is None or self._elapsed == max(_interval(held.bs) - NEWS_LAG, 0)

    def turn(self, survivals: Survivals) -> None:
        """Drafts promise something else from here on: another kind of requests. The next choice is the best for it."""
        self.survivals = survivals
        self._held = None
        self._evidence = PLAIN_EVIDENCE

    def join(self, joined: int) -> None:
        """A prefill has ended, after which ``joined`` more requests decode: taken in at the next look."""
        self._joined += joined

    def turns_over(self, bs: int) -> bool:
        """Whether so many have joined since the last look that what was counted before is of another batch."""
        return another_batch(self._joined, bs)

    def evaluate(self, bs: int, kv_tokens: int) -> tuple[Options, Outlook]:
        """Every option, and what it promises.

        Of those that have joined is known what requests are like when they begin; where most have, it is another batch.
        """
        if self._joined:
            self.survivals.renew(self._joined, bs)
            if self.turns_over(bs):
                self._evidence = PLAIN_EVIDENCE
            self._joined = 0
        options = self._options.of(bs)
        return options, look(bs, kv_tokens, options, self._kv_seconds, self.correction, self.survivals)

    def observe(self, choice: Choice, measured: float, *, disturbed: bool = False) -> None:
        """Correct the profile by what a step that was chosen took, in seconds; `Correction.observe` has the rest."""
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

    def _explore(self, row: int, column: int, outlook: Outlook, bs: int, *, fresh: bool) -> tuple[int, int, bool]:
        """Replace the choice by the full width of the next greater number of steps, when the loss is saved up.

        Labels of tokens that were sure to be accepted say nothing about others, those of few steps nothing about more,
        and without any draft there are none at all.
        """
        self._burst = max(self._burst - 1, 0) if row == 0 else 0
        if self._burst:
            return 1, 0, True
        other = min(row + 1, len(self.steps) - 1)
        if (other, 0) == (row, column):
            return row, column, False  # that is the full width of the most steps already
        _, seconds, gain, _ = outlook
        chosen = float(seconds[row, column])
        worth = (bs + float(gain[other, 0])) * chosen / (bs + float(gain[row, column]))
        loss = max(float(seconds[other, 0]) - worth, 0.0) * (1 if row else BURST)
        share = EXPLORED_SHARE if row else EXPLORED_SHARE_OF_PLAIN + EXPLORED_SHARE_OF_ONE / bs
        self._credit = min(self._credit + share * chosen * self._elapsed, loss)
        self._since_exploration += self._elapsed
        if self._since_exploration < EXPLORATION_INTERVAL or self._credit < loss or not (row or fresh):
            return row, column, False
        self._credit = 0.0
        self._since_exploration = 0
        self._burst = 0 if row else BURST
        return other, 0, True

    def _try(self, row: int, column: int, outlook: Outlook, options: Options) -> tuple[int, int, bool]:
        """Replace the choice by the most promising option that was hardly ever timed, when the loss is saved up.

        What is never chosen keeps the profile's time: where that is too long, it would never be chosen. Plain decoding
        is tried for as many steps as it takes, and only once: it leaves requests without a draft for a step, and holes
        in the draft model's KV cache.
        """
        if self._plain_trial:
            self._plain_trial -= 1
            return 0, 0, True
        _, seconds, _, goodput = outlook
        present = float(seconds[row, column])
        earned = EXPLORED_SHARE * present * self._elapsed
        self._trial_credit = min(self._trial_credit + earned, MOST_SAVED * present)
        self._since_trial += self._elapsed
        if self._since_trial < TRIAL_INTERVAL or self.correction.measured[options.kinds[row, column]] < FIRST:
            return row, column, False
        present_goodput = float(goodput[row, column])
        least = PROMISE * present_goodput
        other, size = unknown(goodput, options.kinds, self.correction.measured, FIRST, least)
        if other < 0:
            return row, column, False
        loss = float(seconds[other, size] * max(1 - goodput[other, size] / present_goodput, 0))
        loss *= 1 if other else FIRST + 1
        if self._trial_credit < loss:
            return row, column, False
        self._trial_credit -= loss
        self._since_trial = 0
        self._plain_trial = 0 if other else FIRST - 1
        return other, size, True
