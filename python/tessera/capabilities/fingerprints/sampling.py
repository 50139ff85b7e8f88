"""How far claimed tokens are from what the verifier's own logits allow: what TOPLOC itself does not cover.

After Token-DiFR (arXiv 2511.20621) and TOPLOC v2: with the seed the noise of each draw is known, and the claimed token
must be the one that wins; without it only what could not have been drawn is seen.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

CANDIDATES = 32
"""Number of most likely tokens that are compared at each place; the claimed token is compared in any case."""


class Place(NamedTuple):
    """One claimed token.

    Attributes:
        token: its id.
        logprob: its log-probability at temperature 1.
        ids: the most likely tokens, the likeliest first.
        logprobs: theirs.
        position: of the token before it, from 0: what SGLang puts into the noise.
    """

    token: int
    logprob: float
    ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]
    position: int


class SamplingStatistics(NamedTuple):
    """Statistics of the claimed tokens.

    Attributes:
        tokens: how many were looked at: all but the last.
        mismatches: how many have a gap above 0.
        gap_mean: mean of all gaps; see `Sampling.gap`.
        gap_max: the largest.
    """

    tokens: int
    mismatches: int
    gap_mean: float
    gap_max: float


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the prover says it drew. A seed is that of a prover with ``--enable-deterministic-inference``."""

    temperature: Annotated[
        Literal[0] | Annotated[float, Meta(ge=0.01, le=100)], Meta(description="0 is the most likely token")
    ] = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1, description="of the most likely tokens so much probability")] = 1.0
    top_k: Annotated[
        Literal[-1] | Annotated[int, Meta(ge=1)], Meta(description="so many of the most likely tokens; -1: all")
    ] = -1
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None,
        Meta(description="sampling_seed; null says nothing of the noise"),
    ] = None

    def statistics(self, places: Sequence[Place]) -> SamplingStatistics:
        """The statistics of all sampled tokens of a claim."""
        gaps = [self.gap(place) for place in places]
        if not gaps:
            return SamplingStatistics(0, 0, 0.0, 0.0)
        return SamplingStatistics(len(gaps), sum(gap > 0 for gap in gaps), sum(gaps) / len(gaps), max(gaps))

    def gap(self, place: Place) -> float:
        """How far a token is from what could be drawn; 0 where it could.

        At temperature 0 and with a seed: by how much the winner's log-probability (with its noise, by the temperature)
        exceeds the token's. Else: by how much the probability before it exceeds top_p, or 1 at a rank above top_k.
        """
        if self.temperature == 0:
            return max(0.0, float(place.logprobs[0]) - place.logprob)
        rank = int((place.logprobs > place.logprob).sum())
        if self.seed is None:
            at_least = self._masses_before(place)[0][rank]
            return 1.0 if 0 < self.top_k <= rank else max(0.0, float(at_least) - self.top_p)
        return self._seeded_gap(place, rank)

    def _masses_before(self, place: Place) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Probability before each rank from 0 on, at this temperature: at least, and at most.

        Of tokens that are not among the candidates only their sum at temperature 1 is known. Below it each of them
        loses as much weight as the last candidate does, or more.
        """
        top, last = float(place.logprobs[0]), float(place.logprobs[-1])
        weights = np.exp((place.logprobs - top) / self.temperature)
        rest = max(0.0, 1.0 - float(np.exp(place.logprobs).sum())) * math.exp(-top)
        most = math.inf if self.temperature > 1 else rest * math.exp((1 / self.temperature - 1) * (last - top))
        least = rest if self.temperature >= 1 else 0.0
        before = np.concatenate([[0.0], weights.cumsum()])
        return before / (before[-1] + most), before / (before[-1] + least)

    def _seeded_gap(self, place: Place, rank: int) -> float:
        # With top-p or top-k SGLang sorts, and draws the rank; else the token.
        by_rank = self.top_p < 1 or self.top_k > 0
        allowed = len(place.ids) if self.top_k < 0 else min(self.top_k, len(place.ids))
        columns = np.arange(allowed) if by_rank else place.ids[:allowed]
        own = rank if by_rank else place.token
        noise = gumbel(self.seed or 0, place.position, np.append(columns, own))
        values = np.append(place.logprobs[:allowed], place.logprob) / self.temperature + noise
        if self.top_p < 1:
            values[:-1][self._masses_before(place)[1][:allowed] > self.top_p] = -math.inf
        return max(0.0, float(values[:-1].max() - values[-1]))


def gumbel(seed: int, position: int, columns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The noise that SGLang adds to log-probabilities when it draws with a seed (``multinomial_with_seed``).

    MurmurHash3 (x86, 32 bits) of seed, position and column, as a share of its range.
    """
    state: npt.NDArray[np.uint64] = np.zeros(len(columns), np.uint64)
    for word in (seed & 0xFFFFFFFF, seed >> 32, position):
        state = _mix_word(state, np.full(len(columns), word, np.uint64))
    hashed = _finalize(_mix_word(state, np.asarray(columns).astype(np.uint64)) ^ np.uint64(16))
    with np.errstate(divide="ignore"):
        share = np.clip(-np.log(hashed.astype(np.float64) / 0xFFFFFFFF), 0, np.finfo(np.float64).max)
        noise: npt.NDArray[np.float64] = -np.log(share)
    return noise


def _multiply32(value: npt.NDArray[np.uint64], factor: int) -> npt.NDArray[np.uint64]:
    return (value * np.uint64(factor)) & np.uint64(0xFFFFFFFF)


def _rotate_left32(value: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return ((value << np.uint64(bits)) | (value >> np.uint64(32 - bits))) & np.uint64(0xFFFFFFFF)


def _mix_word(state: npt.NDArray[np.uint64], word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = state ^ _multiply32(_rotate_left32(_multiply32(word, 0xCC9E2D51), 15), 0x1B873593)
    return (_multiply32(_rotate_left32(state, 13), 5) + np.uint64(0xE6546B64)) & np.uint64(0xFFFFFFFF)


def _finalize(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = _multiply32(state ^ (state >> np.uint64(16)), 0x85EBCA6B)
    state = _multiply32(state ^ (state >> np.uint64(13)), 0xC2B2AE35)
    return state ^ (state >> np.uint64(16))


def places(meta: dict[str, Any], prompt_tokens: int) -> list[Place]:
    """The claimed tokens of a prefill that was asked for logprobs from the prompt's last token on.

    Args:
        meta: its ``meta_info``, with ``input_token_logprobs`` and ``input_top_logprobs``.
        prompt_tokens: N.
    """
    found = []
    pairs = zip(meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:], strict=True)
    for index, ((logprob, token, *_), top) in enumerate(pairs):
        ids, logprobs = np.array([one[1] for one in top]), np.array([one[0] for one in top], np.float64)
        found.append(Place(token, logprob, ids, logprobs, prompt_tokens - 1 + index))
    return found
