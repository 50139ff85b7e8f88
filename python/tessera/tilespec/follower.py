"""Tensor parallelism: one rank decides, and the others do what it says.

Each rank has a scheduler of its own, and they take the same steps. What decides comes late, by each rank's own clock:
times, and counts of what was accepted. Ranks that decided for themselves would disagree sooner or later, and verify
different tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.tilespec.calibration import Traffic
from tessera.tilespec.policy import Choice
from tessera.tilespec.scores import Scores


class Order(NamedTuple):
    """What one step does, on every rank."""

    choice: Choice
    refits: list[tuple[Traffic, npt.NDArray[np.float32]]]
    """Tables of acceptance to be taken before it: see `tessera.tilespec.scores.Scores.refit`."""


class Follower:
    """Stands where the first rank has its `tessera.tilespec.decider.Decider`.

    Args:
        scores: this rank's; it draws the same numbers from the same logits as every other.
        hear: the next order, waited for.
    """

    def __init__(self, scores: Scores, hear: Callable[[], Order]) -> None:
        self._scores = scores
        self._hear = hear

    def choose(self, bs: int, kv_tokens: int, traffic: Traffic = Traffic.GREEDY) -> Choice:  # noqa: ARG002
        """What the first rank chose for this step."""
        choice, refits = self._hear()
        self._scores.use(traffic)
        for kind, table in refits:
            self._scores.refit(kind, table)
        return choice

    def interrupted(self, joined: int) -> None:
        """The first rank sees prefills itself."""

    def drafted(self, steps: int) -> None:
        """The first rank counts, and has the same counts."""
