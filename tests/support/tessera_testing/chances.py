"""Whether what was sampled has the distribution that it should have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

LEAST_EXPECTED = 5.0
"""Below, Pearson's statistic is not chi-squared."""


def chi_squared(found: npt.ArrayLike, expected: npt.ArrayLike, known: int = 1) -> float:
    """The p-value of Pearson's chi-squared test.

    Args:
        found: counts.
        expected: what was to be expected of each, as numbers of the same total.
        known: how many sums of the counts were no chance.

    Raises:
        ValueError: something is expected too seldom for this test.
    """
    counts, means = np.asarray(found, np.float64).ravel(), np.asarray(expected, np.float64).ravel()
    if means.min() < LEAST_EXPECTED:
        raise ValueError(f"a count of {means.min():.2f} is expected; allowed: at least {LEAST_EXPECTED}")
    halves = torch.tensor([(len(counts) - known) / 2, (((counts - means) ** 2) / means).sum() / 2])
    return float(torch.special.gammaincc(*halves.double()))


def places(p: npt.NDArray[np.float64], tokens: npt.ArrayLike, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Where each token lies in its cumulative distribution, the likeliest first: uniform in 0 to 1 if sampled from it.

    Args:
        p: probabilities ``[n, V]``.
        tokens: what was sampled from each, ``[n]``.
        rng: spreads each token over its share.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    shares = np.take_along_axis(p, order, axis=1)
    rank = (order == np.asarray(tokens)[:, None]).argmax(1)[:, None]
    end, share = (np.take_along_axis(values, rank, axis=1)[:, 0] for values in (shares.cumsum(1), shares))
    return np.asarray(end - share * rng.random(len(share)))


def sampled_as(
    answers: Sequence[tuple[list[int], list[int]]],
    law: Callable[[list[int]], npt.NDArray[np.float64]],
    bins: int = 20,
) -> float:
    """The p-value of each token being sampled from the reference's distribution after all tokens before it.

    Args:
        answers: prompts, and the tokens that were generated.
        law: from tokens to the distributions after each of them, ``[n, V]``.
        bins: of `places`, each of which should have as many tokens.
    """
    rng = np.random.default_rng(1)
    found = np.zeros(bins)
    for prompt, output in answers:
        p = law([*prompt, *output[:-1]])[len(prompt) - 1 :]
        found += np.histogram(places(p, output, rng), bins, (0, 1))[0]
    return chi_squared(found, np.full(bins, found.sum() / bins))
