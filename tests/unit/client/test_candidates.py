"""Of n continuations: each text once, the best first."""

from __future__ import annotations

import numpy as np

from tessera.client import Generation
from tessera.client.candidates import group_candidates, rank_candidates
from tessera.client.extract import first_line, whole


def generation(text: str, *logprobs: float) -> Generation:
    """One with these log-probabilities."""
    return Generation(text, tuple(range(len(logprobs))), "stop", 1, token_logprobs=np.array(logprobs, np.float32))


def test_ranked() -> None:
    """By the sum, not the mean; of equal texts the best stays."""
    found = rank_candidates(
        [
            generation("b\nx", -1.0, -1.0),
            generation("a", -1.5),
            generation("b\ny", -0.25, -0.25),
            generation(" \n", -0.1),
            generation("c", -1.5),
        ],
        first_line,
    )
    assert [(candidate.text, candidate.log_prob) for candidate in found] == [("b", -0.5), ("a", -1.5), ("c", -1.5)]
    assert (found[0].raw, found[0].output_ids) == ("b\ny", (0, 1))


def test_grouped() -> None:
    """As many as n in a row belong to one prompt, also where all of them are dropped."""
    flat = [generation("a", -1.0), generation("b", -2.0), generation("", -1.0), generation("", -1.0)]
    assert [[candidate.text for candidate in group] for group in group_candidates(flat, 2, whole)] == [["a", "b"], []]
    assert group_candidates([], 2, whole) == []
