"""Sample the token after the last accepted one, inside the kernel of `tessera_kernels.ops.accept.accept_chains`.

Rows of logits are read in chunks: first a chunk is sampled by the chunks' sums, then a token in it. Weights are
``e^(logit / temperature - peak)``, probabilities up to a common factor; tokens below the row's cutoff have none.
"""

import triton
import triton.language as tl

from tessera_kernels.triton.device.inverse_cdf import inverse_cdf, sum_before

_MINUS_INF = tl.constexpr(float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_weights(row, chunk, excluded, scale, valid, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weights of a chunk of a row; 0 for the excluded token."""
    temperature, peak, cutoff = scale
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    logit = tl.load(row + column, mask=valid & (column < VOCABULARY), other=_MINUS_INF).to(tl.float32)
    return tl.where((column == excluded) | (logit < cutoff), 0.0, tl.exp(logit / temperature - peak))


@triton.jit  # type: ignore[untyped-decorator]
def _sample_target(  # type: ignore[no-untyped-def]
    row, sums, excluded, scale, coin, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr, SLOTS: tl.constexpr
):
    """A token of the target's distribution without the excluded token; -1 excludes none."""
    own = tl.where(excluded >= 0, excluded // CHUNK, -1)
    # Summed again without the token: its weight may be nearly all of the sum, and a difference would cancel.
    rest = tl.sum(_chunk_weights(row, own, excluded, scale, own >= 0, VOCABULARY, CHUNK), 0)
    sums = tl.where(tl.arange(0, SLOTS) == own, rest, sums)
    target = coin * tl.sum(sums, 0)
    chunk = inverse_cdf(sums, 0.0, target, SLOTS)
    weights = _chunk_weights(row, chunk, excluded, scale, chunk >= 0, VOCABULARY, CHUNK)
    return chunk * CHUNK + inverse_cdf(weights, sum_before(sums, chunk, SLOTS), target, CHUNK)


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_residual(  # type: ignore[no-untyped-def]
    row, proposal, draft_ids, chunk, scale, total, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr, MAPPED: tl.constexpr
):
    """The residual distribution max(p - q, 0) of a chunk of a row, not normalized."""
    p = _chunk_weights(row, chunk, -1, scale, chunk >= 0, VOCABULARY, CHUNK) / total
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    known = column < VOCABULARY
    if MAPPED:
        column = tl.load(draft_ids + column, mask=known, other=-1)
        known = column >= 0
    return tl.maximum(p - tl.load(proposal + column, mask=known, other=0.0), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _sample_residual(  # type: ignore[no-untyped-def]
    row,
    proposal,
    draft_ids,
    sums,
    scale,
    coin,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    MAPPED: tl.constexpr,
):
    """A token of the residual distribution; -1 where the residual is zero."""
    total = tl.sum(sums, 0)
    residual = tl.zeros((SLOTS,), tl.float32)
    for one in range(CHUNKS):
        weights = _chunk_residual(row, proposal, draft_ids, one, scale, total, VOCABULARY, CHUNK, MAPPED)
        residual = tl.where(tl.arange(0, SLOTS) == one, tl.sum(weights, 0), residual)
    target = coin * tl.sum(residual, 0)
    chunk = inverse_cdf(residual, 0.0, target, SLOTS)
    weights = _chunk_residual(row, proposal, draft_ids, chunk, scale, total, VOCABULARY, CHUNK, MAPPED)
    token = chunk * CHUNK + inverse_cdf(weights, sum_before(residual, chunk, SLOTS), target, CHUNK)
    return tl.where(tl.sum(residual, 0) > 0, token, -1)


@triton.jit  # type: ignore[untyped-decorator]
def sample_token(  # type: ignore[no-untyped-def]
    row,
    proposal,
    draft_ids,
    sums,
    rejected,
    scale,
    coin,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOTS: tl.constexpr,
    PROPOSED: tl.constexpr,
    MAPPED: tl.constexpr,
):
    """The token after the last accepted one; ``rejected`` is -1 where all draft tokens were accepted.

    ``row`` points to the row's logits, ``sums`` has the chunks' sums of weights, and ``scale`` temperature, peak and
    cutoff. If PROPOSED, ``proposal`` points to the distribution q that the rejected token was sampled from. If
    MAPPED, q is over the draft's vocabulary, and ``draft_ids`` points to each token's id there, or -1. ``coin`` is
    uniform in [0, 1).
    """
    if PROPOSED:
        none = tl.full((), -1, tl.int32)
        token = none
        if rejected >= 0:
            token = _sample_residual(
                row, proposal, draft_ids, sums, scale, coin, VOCABULARY, CHUNK, CHUNKS, SLOTS, MAPPED
            )
        if token < 0:
            token = _sample_target(row, sums, none, scale, coin, VOCABULARY, CHUNK, SLOTS)
    else:
        token = _sample_target(row, sums, rejected, scale, coin, VOCABULARY, CHUNK, SLOTS)
    return token
