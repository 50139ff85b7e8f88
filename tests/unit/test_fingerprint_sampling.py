"""How far claimed tokens are from what could have been drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.capabilities.fingerprints.options import ToplocClaim
from tessera.capabilities.fingerprints.sampling import CANDIDATES, Place, Sampling, gumbel, places
from tessera.errors import BadRequest
from tessera.fields import read

VOCABULARY = 500


def distribution(seed: int) -> Any:
    """Log-probabilities of a made-up model at one place."""
    logits = 3 * np.random.default_rng(seed).standard_normal(VOCABULARY)
    return logits - np.log(np.exp(logits).sum())


def place(logprobs: Any, token: int, position: int = 0) -> Place:
    """What a verifier sees of it."""
    ids = np.argsort(-logprobs, kind="stable")[:CANDIDATES]
    return Place(token, logprobs[token], ids, logprobs[ids], position)


def drawn(sampling: Sampling, logprobs: Any, position: int, generator: Any) -> int:
    """Draw one as SGLang does, over the whole vocabulary."""
    if sampling.temperature == 0:
        return int(logprobs.argmax())
    weights = np.exp(logprobs / sampling.temperature)
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    allowed = weights[order].copy()
    allowed[(np.cumsum(weights[order]) - allowed) > sampling.top_p] = 0
    if sampling.top_k > 0:
        allowed[sampling.top_k :] = 0
    if sampling.seed is None:
        return int(generator.choice(order, p=allowed / allowed.sum()))
    with np.errstate(divide="ignore"):
        if sampling.top_p < 1 or sampling.top_k > 0:
            return int(order[(np.log(allowed) + gumbel(sampling.seed, position, np.arange(VOCABULARY))).argmax()])
        return int((np.log(weights) + gumbel(sampling.seed, position, np.arange(VOCABULARY))).argmax())


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(top_p=0.8),
        Sampling(temperature=0.7, top_p=0.95),
        Sampling(temperature=1.3, top_p=0.9),
        Sampling(top_k=5),
        Sampling(seed=42),
        Sampling(temperature=0.7, seed=2**40 + 1),
        Sampling(temperature=0.8, top_p=0.9, seed=7),
        Sampling(temperature=0.8, top_k=10, seed=7),
    ],
    ids=str,
)
def test_what_was_drawn_is_allowed(sampling: Sampling) -> None:
    """Whatever the options, an honest token has no gap."""
    generator = np.random.default_rng(1)
    spots = [distribution(i) for i in range(150)]
    found = sampling.statistics([place(one, drawn(sampling, one, i, generator), i) for i, one in enumerate(spots)])
    assert (found.tokens, found.mismatches) == (150, 0)


@pytest.mark.parametrize(
    ("said", "did", "least"),
    [
        (Sampling(temperature=0), Sampling(temperature=1), 0.4),
        (Sampling(top_p=0.5), Sampling(), 0.2),
        (Sampling(top_k=2), Sampling(), 0.3),
        (Sampling(seed=1), Sampling(seed=2), 0.4),
        (Sampling(seed=1), Sampling(), 0.4),
        (Sampling(temperature=0.7, top_p=0.9, seed=1), Sampling(temperature=0.7, top_p=0.9, seed=2), 0.3),
    ],
    ids=str,
)
def test_another_way_of_drawing_shows(said: Sampling, did: Sampling, least: float) -> None:
    """A share of the tokens could not have been drawn as was said."""
    generator = np.random.default_rng(2)
    spots = [distribution(i) for i in range(200)]
    found = said.statistics([place(one, drawn(did, one, i, generator), i) for i, one in enumerate(spots)])
    assert found.mismatches >= least * 200
    assert found.gap_max >= found.gap_mean > 0


def test_no_token() -> None:
    """A response of one token: the last one is not looked at."""
    assert Sampling().statistics([]) == (0, 0, 0.0, 0.0)


def test_places() -> None:
    """From SGLang's lists; the first entry is the prompt's last token, of which there is nothing."""
    meta = {
        "input_token_logprobs": [[None, 5, None], [-0.5, 6, None], [-2.0, 7, None]],
        "input_top_logprobs": [None, [[-0.5, 6, None], [-1.0, 8, None]], [[-0.1, 9, None], [-2.0, 7, None]]],
    }
    first, second = places(meta, prompt_tokens=10)
    assert (first.token, first.logprob, first.ids.tolist(), first.position) == (6, -0.5, [6, 8], 9)
    assert (second.token, second.logprobs.tolist(), second.position) == (7, [-0.1, -2.0], 10)


def parsed(value: Any) -> Sampling | None:
    """What a claim says of its sampling."""
    return read({"sampling": value, "input_ids": [], "output_ids": []}, ToplocClaim).sampling


def test_schema() -> None:
    """None is nothing, and what is not said is SGLang's default."""
    assert parsed(None) is None
    assert parsed({}) == Sampling()
    assert parsed({"temperature": 0.0, "top_p": 1, "top_k": -1.0}) == Sampling(0, 1, -1)
    value = {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "seed": 3}
    assert parsed(value) == Sampling(0.5, 0.9, -1, 3)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (1, "sampling"),
        ([], "sampling"),
        ({"min_p": 0.1}, "sampling.min_p"),
        ({"temperature": -1}, "sampling.temperature"),
        ({"temperature": False}, "sampling.temperature"),
        ({"temperature": float("nan")}, "sampling.temperature"),
        ({"temperature": True}, "sampling.temperature"),
        ({"top_p": 2}, "sampling.top_p"),
        ({"top_k": 0}, "sampling.top_k"),
        ({"top_k": 1.5}, "sampling.top_k"),
        ({"seed": -1}, "sampling.seed"),
        ({"seed": 2**64}, "sampling.seed"),
    ],
)
def test_bad_schema(value: Any, field: str) -> None:
    """Each refusal names its field."""
    with pytest.raises(BadRequest) as refused:
        parsed(value)
    assert refused.value.field == field
