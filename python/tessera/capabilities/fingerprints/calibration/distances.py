"""From measured distances, honest ones and those of cheats, to thresholds and what they are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tessera.capabilities.fingerprints.thresholds import Thresholds
from tessera.capabilities.fingerprints.verifier import Distance

MARGIN = 1.25
"""A threshold lies so many times above the largest honest distance that was seen."""

LEAST = 2
"""Honest responses of each kind: one that gives the thresholds, one that judges them."""
_CONFIDENCE = 0.95


class Measured(NamedTuple):
    """What a verifier found for one response: the distance of each fingerprint, and how many values it proves."""

    distances: list[Distance]
    values: list[int]


def thresholds(honest: Sequence[Measured], margin: float = MARGIN) -> Thresholds:
    """The smallest thresholds under which all honest responses pass, times the margin; above 0 for equal ones too.

    Args:
        honest: at least one response.
        margin: factor above the largest honest distance.
    """
    pairs = [pair for one in honest for pair in zip(one.distances, one.values, strict=True)]
    share = max(found.exp_mismatches / values for found, values in pairs)
    step = 1 / max(values for _, values in pairs)  # one value is another, by one: nothing smaller can be measured
    return Thresholds(
        min(max(share, step) * margin, 1.0),
        max(step, *(found.mant_err_mean for found, _ in pairs)) * margin,
        max(max(found.mant_err_median for found, _ in pairs) * margin, 1.0),
    )


def count_accepted(responses: Sequence[Measured], limits: Thresholds) -> int:
    """How many responses pass: those all of whose fingerprints do."""
    return sum(not limits.why_failed(one.distances, one.values) for one in responses)


def rate_below(seen: int, count: int) -> float:
    """The rate of an event lies below this with 95 % confidence (Clopper and Pearson, Biometrika 26, 1934).

    Args:
        seen: how often it happened.
        count: of so many times, at least one.
    """
    if seen == count:
        return 1.0
    low, high = seen / count, 1.0
    for _ in range(50):
        rate = (low + high) / 2
        low, high = (rate, high) if _at_most(seen, count, rate) > 1 - _CONFIDENCE else (low, rate)
    return high


def _at_most(seen: int, count: int, rate: float) -> float:
    """The probability of at most so many events."""
    ways = (math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1) for i in range(seen + 1))
    return sum(math.exp(way + i * math.log(rate) + (count - i) * math.log1p(-rate)) for i, way in enumerate(ways))


def report(
    honest: Mapping[str, Sequence[Measured]],
    cheats: Mapping[str, Sequence[Measured]],
    topk: int,
    margin: float = MARGIN,
) -> dict[str, object]:
    """Thresholds, and which share of the responses of each kind passes under them and under the paper's.

    Every other honest response gives the thresholds, and they are judged on the rest: one that they were made of
    passes whatever they are worth.

    Args:
        honest: at least `LEAST` responses by the way in which they were made.
        cheats: responses by the kind of cheat.
        topk: values that a fingerprint proves.
        margin: see `thresholds`.
    """
    found = thresholds([one for responses in honest.values() for one in responses[::2]], margin)
    rest = {name: responses[1::2] for name, responses in honest.items()}
    judged = [one for responses in rest.values() for one in responses]
    return {
        "topk": topk,
        "thresholds": found.for_values(topk),
        "false_reject_rate_below": rate_below(len(judged) - count_accepted(judged, found), len(judged)),
        "honest": {name: _row(responses, found) for name, responses in rest.items()},
        "cheats": {name: _cheats_row(responses, found) for name, responses in cheats.items()},
    }


def _cheats_row(responses: Sequence[Measured], limits: Thresholds) -> dict[str, object]:
    bound = rate_below(count_accepted(responses, limits), len(responses))
    return _row(responses, limits) | {"false_accept_rate_below": bound}


def _row(responses: Sequence[Measured], limits: Thresholds) -> dict[str, object]:
    every = [distance for one in responses for distance in one.distances]
    return {
        "responses": len(responses),
        "passed": count_accepted(responses, limits),
        "passed_by_default": count_accepted(responses, Thresholds()),
        "largest": Distance(*map(max, zip(*every, strict=True)))._asdict(),
        "mean": {
            name: sum(column) / len(every)
            for name, column in zip(Distance._fields, zip(*every, strict=True), strict=True)
        },
    }
