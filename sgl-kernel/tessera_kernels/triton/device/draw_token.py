"""Draw a token of a row in a kernel: the one after the last accepted token, for `tessera_kernels.ops.accept`."""

from __future__ import annotations

import triton
import triton.language as tl

_NOTHING = tl.constexpr(float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _weights(  # type: ignore[no-untyped-def]
    row, chunk, rejected, temperature, top, cutoff, inside, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr
):
    """Probabilities of a chunk of a row, times what all of them have in common; 0 for the rejected token."""
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    value = tl.load(row + column, mask=inside & (column < VOCABULARY), other=_NOTHING).to(tl.float32)
    return tl.where((column == rejected) | (value < cutoff), 0.0, tl.exp(value / temperature - top))


@triton.jit  # type: ignore[untyped-decorator]
def place_of(weights, before, wanted, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first place at which the weights, and what comes before them, add up to more than is wanted.

    Rounding may leave that behind the last weight; so it is never behind.
    """
    place = tl.sum((before + tl.cumsum(weights, 0) <= wanted).to(tl.int32), 0)
    return tl.minimum(place, tl.max(tl.where(weights > 0, tl.arange(0, SIZE), 0), 0))


@triton.jit  # type: ignore[untyped-decorator]
def mass_before(masses, place, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the chunks before one add up to."""
    return tl.sum(tl.where(tl.arange(0, SIZE) < place, masses, 0.0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    row,
    masses,
    rejected,
    temperature,
    top,
    cutoff,
    coin,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """A token of a row, by its coin: first its chunk, then its place there; never the rejected one."""
    own = tl.where(rejected >= 0, rejected // CHUNK, -1)
    # Added up anew without the token, whose probability may be nearly all there is.
    without = tl.sum(_weights(row, own, rejected, temperature, top, cutoff, own >= 0, VOCABULARY, CHUNK), 0)
    masses = tl.where(tl.arange(0, SLOTS) == own, without, masses)
    wanted = coin * tl.sum(masses, 0)
    chunk = place_of(masses, 0.0, wanted, SLOTS)
    weights = _weights(row, chunk, rejected, temperature, top, cutoff, chunk >= 0, VOCABULARY, CHUNK)
    return chunk * CHUNK + place_of(weights, mass_before(masses, chunk, SLOTS), wanted, CHUNK)


@triton.jit  # type: ignore[untyped-decorator]
def _left(  # type: ignore[no-untyped-def]
    row,
    proposal,
    places,
    chunk,
    temperature,
    top,
    total,
    cutoff,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    MAPPED: tl.constexpr,
):
    """Of a chunk of a row, what the target's probabilities are above the proposed ones."""
    p = _weights(row, chunk, -1, temperature, top, cutoff, chunk >= 0, VOCABULARY, CHUNK) / total
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    known = column < VOCABULARY
    if MAPPED:
        column = tl.load(places + column, mask=known, other=-1)
        known = column >= 0
    return tl.maximum(p - tl.load(proposal + column, mask=known, other=0.0), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _draw_left(  # type: ignore[no-untyped-def]
    row,
    proposal,
    places,
    masses,
    temperature,
    top,
    cutoff,
    coin,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    MAPPED: tl.constexpr,
):
    """A token of what was not proposed, by its coin as in `_draw`; -1 where nothing is left."""
    total = tl.sum(masses, 0)
    left = tl.zeros((SLOTS,), tl.float32)
    for one in range(CHUNKS):
        weights = _left(row, proposal, places, one, temperature, top, total, cutoff, VOCABULARY, CHUNK, MAPPED)
        left = tl.where(tl.arange(0, SLOTS) == one, tl.sum(weights, 0), left)
    wanted = coin * tl.sum(left, 0)
    chunk = place_of(left, 0.0, wanted, SLOTS)
    weights = _left(row, proposal, places, chunk, temperature, top, total, cutoff, VOCABULARY, CHUNK, MAPPED)
    found = chunk * CHUNK + place_of(weights, mass_before(left, chunk, SLOTS), wanted, CHUNK)
    return tl.where(tl.sum(left, 0) > 0, found, -1)


@triton.jit  # type: ignore[untyped-decorator]
def draw_token(  # type: ignore[no-untyped-def]
    row,
    proposal,
    places,
    masses,
    rejected,
    temperature,
    top,
    cutoff,
    coin,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    PROPOSED: tl.constexpr,
    MAPPED: tl.constexpr,
):
    """The token after the last accepted one; ``rejected`` is -1 where all were accepted.

    Of the logits from ``row`` on, each chunk of e^(logit / temperature - top) adds up to one of the ``masses``. Where
    drafts were PROPOSED, ``proposal`` has the probabilities that the rejected one was sampled from; where they are
    MAPPED, those of the draft's own vocabulary, and ``places`` which of these each token is.
    """
    if PROPOSED:
        none = tl.full((), -1, tl.int32)
        last = none
        if rejected >= 0:
            last = _draw_left(
                row, proposal, places, masses, temperature, top, cutoff, coin, VOCABULARY, CHUNK, CHUNKS, SLOTS, MAPPED
            )
        if last < 0:
            last = _draw(row, masses, none, temperature, top, cutoff, coin, VOCABULARY, CHUNK, SLOTS)
    else:
        last = _draw(row, masses, rejected, temperature, top, cutoff, coin, VOCABULARY, CHUNK, SLOTS)
    return last
