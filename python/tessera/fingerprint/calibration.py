"""From measured distances, honest ones and those of cheats, to thresholds and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tessera.fingerprint.thresholds import Thresholds
from tessera.fingerprint.verifier import Distance

MARGIN = 1.25
"""A threshold lies so many times above the largest honest distance that was seen."""

_CONFIDENCE = 3.0
"""Where none of n was seen, the rate is below 3/n with 95 % confidence."""


class Measured(NamedTuple):
    """What a verifier found for one response: the distance of each fingerprint, and how many values it proves."""

    distances: list[Distance]
    values: list[int]


def thresholds(honest: Sequence[Measured], margin: float = MARGIN) -> Thresholds:
    """The smallest thresholds under which all honest responses pass, times the margin.

    Args:
        honest: at least one response.
        margin: factor above the largest honest distance.
    """
    pairs = [pair for one in honest for pair in zip(one.distances, one.values, strict=True)]
    share = max(found.exp_mismatches / values for found, values in pairs)
    step = 1 / max(values for _, values in pairs)
    return Thresholds(
        min(max(share, step) * margin, 1.0),
        max(found.mant_err_mean for found, _ in pairs) * margin,
        max(max(found.mant_err_median for found, _ in pairs) * margin, 1.0),
    )


def accepted(responses: Sequence[Measured], limits: Thresholds) -> int:
    """How many responses pass: those all of whose fingerprints do."""
    return sum(not limits.why_failed(one.distances, one.values) for one in responses)


def report(
    honest: Mapping[str, Sequence[Measured]],
    cheats: Mapping[str, Sequence[Measured]],
    topk: int,
    margin: float = MARGIN,
) -> dict[str, object]:
    """Thresholds, and which share of the responses of each kind passes under them and under the paper's.

    Args:
        honest: responses by the way in which they were made.
        cheats: responses by the kind of cheat.
        topk: values that a fingerprint proves.
        margin: see `thresholds`.
    """
    every = [one for responses in honest.values() for one in responses]
    found = thresholds(every, margin)
    return {
        "topk": topk,
        "thresholds": found.for_values(topk),
        "false_reject_rate_below": _CONFIDENCE / len(every),
        "honest": {name: _row(responses, found) for name, responses in honest.items()},
        "cheats": {name: _row(responses, found) for name, responses in cheats.items()},
    }


def _row(responses: Sequence[Measured], limits: Thresholds) -> dict[str, object]:
    every = [distance for one in responses for distance in one.distances]
    return {
        "responses": len(responses),
        "passed": accepted(responses, limits),
        "passed_by_default": accepted(responses, Thresholds()),
        "largest": Distance(*map(max, zip(*every, strict=True)))._asdict(),
        "mean": {
            name: sum(column) / len(every)
            for name, column in zip(Distance._fields, zip(*every, strict=True), strict=True)
        },
    }
