"""The Triton kernel of `tessera_kernels.ops.accept.accept_chains`."""

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, Observation
from tessera_kernels.ops.learning.observe_acceptance import OFFSET_DECAY, OFFSET_LIMIT, OFFSET_RATE
from tessera_kernels.triton.device.acceptance_model import observe_chain
from tessera_kernels.triton.device.chunk_softmax import Chunks, chunk_softmax, load_cutoff
from tessera_kernels.triton.device.launcher import Launcher, power_of_2
from tessera_kernels.triton.device.sample_token import sample_token

_NUMBERS = ["threshold_single", "threshold_acc", "confidence_stride", "depths", "decay", "rate", "limit"]
_MINUS_INF = tl.constexpr(float("-inf"))
_GREEDY = None, None, None, 1.0, 1.0, None, None, None
"""The fields of a `ChainSampling` where none is given."""


@triton.jit  # type: ignore[untyped-decorator]
def _accepts(  # type: ignore[no-untyped-def]
    proposal, draft_ids, draft, tested, probability, coin, thresholds, PROPOSED: tl.constexpr, MAPPED: tl.constexpr
):
    """Which draft tokens their coins accept, by the target's probabilities of them."""
    threshold_single, threshold_acc = thresholds
    if PROPOSED:
        known = tested
        if MAPPED:
            draft = tl.load(draft_ids + draft, mask=tested, other=-1)
            known = draft >= 0
        accepts = coin * tl.load(proposal + draft, mask=known, other=0.0) < probability
    else:
        accepts = (coin < probability / threshold_acc) | (probability >= threshold_single)
    return accepts


@Launcher
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _accept_kernel(  # type: ignore[no-untyped-def]
    logits,
    qo_indptr,
    chains,
    temperatures,
    coins,
    last_coins,
    cutoffs,
    proposals,
    draft_ids,
    maxima,
    sums,
    tokens_out,
    index_out,
    lens_out,
    confidence,
    requests,
    edges,
    table,
    offsets,
    counts,
    threshold_single,
    threshold_acc,
    confidence_stride,
    depths,
    decay,
    rate,
    limit,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SAMPLED: tl.constexpr,
    HAS_CUTOFFS: tl.constexpr,
    PROPOSED: tl.constexpr,
    MAPPED: tl.constexpr,
    DEPTHS: tl.constexpr,
    SLOTS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Program b accepts the chain of request b: all depths are tested at once, and the first failure ends it.

    PROPOSED is the size of the draft's vocabulary, or 0. With BINS of 0 the acceptance model is not updated.
    """
    request = tl.program_id(0)
    begin = tl.load(qo_indptr + request)
    length = tl.load(qo_indptr + request + 1) - begin
    depth, chunk = tl.arange(0, DEPTHS), tl.arange(0, SLOTS)
    padded_row = request * WIDTH + depth
    tested = depth < length - 1
    draft = tl.load(chains + padded_row + 1, mask=tested, other=-1)
    cell = padded_row[:, None] * CHUNKS + chunk[None, :]
    known = (depth < length)[:, None] & (chunk < CHUNKS)[None, :]
    maximum = tl.load(maxima + cell, mask=known, other=_MINUS_INF)
    weight = tl.load(sums + cell, mask=known, other=0.0)
    if SAMPLED:
        temperature = tl.load(temperatures + request)
        peak = tl.max(maximum, 1)
        peak = tl.where(peak == _MINUS_INF, 0.0, peak)
        weight = weight * tl.exp(maximum - peak[:, None])
        source = logits + (begin + depth).to(tl.int64) * STRIDE + draft
        own = tl.load(source, mask=tested, other=_MINUS_INF).to(tl.float32)
        if HAS_CUTOFFS:
            own = tl.where(own < tl.load(cutoffs + begin + depth, mask=tested, other=0.0), _MINUS_INF, own)
        probability = tl.exp(own / temperature - peak) / tl.sum(weight, 1)
        coin = tl.load(coins + padded_row, mask=tested, other=1.0)
        proposal = proposals + (request * (WIDTH - 1) + depth).to(tl.int64) * PROPOSED
        accepts = _accepts(
            proposal, draft_ids, draft, tested, probability, coin, (threshold_single, threshold_acc), PROPOSED, MAPPED
        )
        matches = tested & accepts
    else:
        _, best = tl.max(maximum, 1, return_indices=True, return_indices_tie_break_left=True)
        token = tl.sum(tl.where(chunk[None, :] == best[:, None], weight, 0.0), 1).to(tl.int64)
        matches = tested & (token == draft)
    correct = tl.min(tl.where(matches, DEPTHS, depth), 0)
    if SAMPLED:
        here = depth == correct
        row = logits + (begin + correct).to(tl.int64) * STRIDE
        proposal = proposals + (request * (WIDTH - 1) + correct).to(tl.int64) * PROPOSED
        sums, rejected = tl.sum(tl.where(here[:, None], weight, 0.0), 0), tl.sum(tl.where(here, draft, 0), 0)
        scale = temperature, tl.sum(tl.where(here, peak, 0.0), 0), load_cutoff(cutoffs + begin + correct, HAS_CUTOFFS)
        coin = tl.load(last_coins + request)
        last = sample_token(
            row, proposal, draft_ids, sums, rejected, scale, coin, VOCABULARY, CHUNK, CHUNKS, SLOTS, PROPOSED, MAPPED
        )
        token = tl.where(here, last, draft)
    accepted = depth <= correct
    inside = depth < WIDTH
    token = tl.minimum(token, VOCABULARY - 1)  # the index of a NaN may be in the padding of the last chunk
    tl.store(tokens_out + padded_row, tl.where(accepted, token, 0).to(tl.int32), mask=inside)
    tl.store(index_out + padded_row, tl.where(accepted, padded_row, -1), mask=inside)
    tl.store(lens_out + request, correct + 1)
    if BINS > 0:
        model, rates = (edges, table, offsets, counts), (decay, rate, limit)
        own_confidence = confidence + request * confidence_stride
        observe_chain(own_confidence, requests, model, request, depth, tested, correct, depths, rates, BINS, LEVELS)


def accept_chains_triton(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    chains: torch.Tensor,
    sampling: ChainSampling | None,
    accepted: AcceptedChains,
    observation: Observation | None = None,
) -> None:
    """See `tessera_kernels.ops.accept.accept_chains`. Two launches: chunks of rows, then requests."""
    bs, width = chains.shape
    unread = accepted.accept_lens
    temperatures, coins, last_coins, threshold_single, threshold_acc, cutoffs, proposals, draft_ids = (
        sampling or _GREEDY
    )
    chunks = Chunks.of(logits)
    partial = chunk_softmax(logits, qo_indptr, temperatures, cutoffs, bs * width, width, chunks)
    optional = temperatures, coins, last_coins, cutoffs, proposals, draft_ids
    sampled = [unread if one is None else one for one in optional]
    proposed = 0 if proposals is None else proposals.shape[2]
    if observation is None:
        observed, depths, bins, confidence_stride = (unread,) * 6, 1, 0, 0
    else:
        confidence, requests, model = observation
        observed = confidence, requests, *model
        (depths, bins), confidence_stride = model.logits.shape, confidence.stride(0)
    _accept_kernel(
        (bs, 1, 1),
        (logits, qo_indptr, chains, *sampled, *partial, *accepted, *observed),
        (threshold_single, threshold_acc, confidence_stride, depths, OFFSET_DECAY, OFFSET_RATE, OFFSET_LIMIT),
        (
            *(width, *chunks, temperatures is not None, cutoffs is not None, proposed, draft_ids is not None),
            *(power_of_2(width), power_of_2(chunks.per_row), bins, max(bins.bit_length() - 1, 0)),
        ),
    )
