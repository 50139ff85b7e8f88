"""Tensor parallelism: the first rank decides, and the others receive its decisions.

Each rank has its own scheduler, and all take the same steps. Decisions depend on times and on counts that arrive late,
at other moments on each rank: ranks that decided for themselves would verify different tokens sooner or later.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.tilespec.calibration import Traffic
from tessera.tilespec.policy import Choice
from tessera.tilespec.scores import Scores


class StepDecision(NamedTuple):
    """The decision for one step, the same on each rank."""

    choice: Choice
    refits: list[tuple[Traffic, npt.NDArray[np.float32]]]
    """Acceptance tables to take before the step: arguments of `tessera.tilespec.scores.Scores.refit`."""


class Follower:
    """The counterpart of `tessera.tilespec.decider.Decider` on the other ranks.

    Args:
        scores: this rank's tensors, which are equal to the first rank's.
        receive: waits for the next decision.
    """

    def __init__(self, scores: Scores, receive: Callable[[], StepDecision]) -> None:
        self._scores = scores
        self._receive = receive

    def choose(self, bs: int, kv_tokens: int, traffic: Traffic = Traffic.GREEDY) -> Choice:  # noqa: ARG002
        """The first rank's choice for this step."""
        choice, refits = self._receive()
        self._scores.use(traffic)
        for kind, table in refits:
            self._scores.refit(kind, table)
        return choice

    def on_prefill(self, new_requests: int) -> None:
        """Nothing: the first rank sees prefills itself."""

    def on_verify(self, steps: int) -> None:
        """Nothing: the first rank has the same counts."""
