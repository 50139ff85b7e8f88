"""The Triton kernels behind `tessera_kernels.ops.accept.accept_chains.accept_chains`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tessera_kernels.ops.accept.accept_chains import AcceptedChains, ChainSampling, Observation
from tessera_kernels.ops.learning.observe_acceptance import OFFSET_KEPT, OFFSET_LIMIT, OFFSET_RATE
from tessera_kernels.triton.device.draw_token import draw_token
from tessera_kernels.triton.device.launch import Launcher, power_of_2
from tessera_kernels.triton.learning.observe_acceptance import observe_chain

CHUNK = 4096
"""Logits of one program."""
_NUMBERS = ["single", "total", "confidence_stride", "depths", "kept", "rate", "limit"]
_NOTHING = tl.constexpr(float("-inf"))
_GREEDY = None, None, None, 1.0, 1.0, None, None, None
"""What stands where a `ChainSampling` would."""


@triton.jit  # type: ignore[untyped-decorator]
def _cutoff(cutoff, CUT: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a logit must have to be sampled."""
    least = _NOTHING
    if CUT:
        least = tl.load(cutoff)
    return least


@Launcher
@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _chunks_kernel(  # type: ignore[no-untyped-def]
    logits,
    qo_indptr,
    temperatures,
    cutoffs,
    peaks,
    masses,
    width,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SAMPLED: tl.constexpr,
    CUT: tl.constexpr,
):
    """Program (r, c) reads chunk c of dense row r: its greatest logit, and its place; or the sum of what e^ gives."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    request, within = row // width, row % width
    begin = tl.load(qo_indptr + request)
    if within < tl.load(qo_indptr + request + 1) - begin:
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        source = logits + (begin + within).to(tl.int64) * STRIDE + column
        value = tl.load(source, mask=column < VOCABULARY, other=_NOTHING).to(tl.float32)
        if SAMPLED:
            value = tl.where(value < _cutoff(cutoffs + begin + within, CUT), _NOTHING, value)
            value = value / tl.load(temperatures + request)
            peak = tl.max(value, 0)
            mass = tl.sum(tl.exp(value - tl.where(peak == _NOTHING, 0.0, peak)), 0)
        else:
            peak, place = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
            mass = (chunk * CHUNK + place).to(tl.float32)
        tl.store(peaks + row * CHUNKS + chunk, peak)
        tl.store(masses + row * CHUNKS + chunk, mass)


@triton.jit  # type: ignore[untyped-decorator]
def _lucky(  # type: ignore[no-untyped-def]
    proposed, places, draft, tested, chance, coin, single, total, PROPOSED: tl.constexpr, MAPPED: tl.constexpr
):
    """Which draft tokens their coins accept, by the target's probabilities of them."""
    if PROPOSED:
        known = tested
        if MAPPED:
            draft = tl.load(places + draft, mask=tested, other=-1)
            known = draft >= 0
        lucky = coin * tl.load(proposed + draft, mask=known, other=0.0) < chance
    else:
        lucky = (coin < chance / total) | (chance >= single)
    return lucky


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
    draft_places,
    peaks,
    masses,
    tokens_out,
    places_out,
    lens_out,
    confidence,
    requests,
    edges,
    table,
    offsets,
    counts,
    single,
    total,
    confidence_stride,
    depths,
    kept,
    rate,
    limit,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SAMPLED: tl.constexpr,
    CUT: tl.constexpr,
    PROPOSED: tl.constexpr,
    MAPPED: tl.constexpr,
    DEPTHS: tl.constexpr,
    SLOTS: tl.constexpr,
    BINS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Program b accepts the chain of request b: all depths at once, then the first that is not accepted counts.

    PROPOSED is how many tokens the draft knows, or 0. With 0 bins nothing is learnt.
    """
    request = tl.program_id(0)
    begin = tl.load(qo_indptr + request)
    length = tl.load(qo_indptr + request + 1) - begin
    depth, chunk = tl.arange(0, DEPTHS), tl.arange(0, SLOTS)
    dense = request * WIDTH + depth
    tested = depth < length - 1
    draft = tl.load(chains + dense + 1, mask=tested, other=-1)
    cell = dense[:, None] * CHUNKS + chunk[None, :]
    known = (depth < length)[:, None] & (chunk < CHUNKS)[None, :]
    peak = tl.load(peaks + cell, mask=known, other=_NOTHING)
    mass = tl.load(masses + cell, mask=known, other=0.0)
    if SAMPLED:
        temperature = tl.load(temperatures + request)
        top = tl.max(peak, 1)
        top = tl.where(top == _NOTHING, 0.0, top)
        mass = mass * tl.exp(peak - top[:, None])
        source = logits + (begin + depth).to(tl.int64) * STRIDE + draft
        own = tl.load(source, mask=tested, other=_NOTHING).to(tl.float32)
        if CUT:
            own = tl.where(own < tl.load(cutoffs + begin + depth, mask=tested, other=0.0), _NOTHING, own)
        chance = tl.exp(own / temperature - top) / tl.sum(mass, 1)
        coin = tl.load(coins + dense, mask=tested, other=1.0)
        proposed = proposals + (request * (WIDTH - 1) + depth).to(tl.int64) * PROPOSED
        right = tested & _lucky(proposed, draft_places, draft, tested, chance, coin, single, total, PROPOSED, MAPPED)
    else:
        _, best = tl.max(peak, 1, return_indices=True, return_indices_tie_break_left=True)
        token = tl.sum(tl.where(chunk[None, :] == best[:, None], mass, 0.0), 1).to(tl.int64)
        right = tested & (token == draft)
    correct = tl.min(tl.where(right, DEPTHS, depth), 0)
    if SAMPLED:
        here = depth == correct
        last = draw_token(
            logits + (begin + correct).to(tl.int64) * STRIDE,
            proposals + (request * (WIDTH - 1) + correct).to(tl.int64) * PROPOSED,
            draft_places,
            tl.sum(tl.where(here[:, None], mass, 0.0), 0),
            tl.sum(tl.where(here, draft, 0), 0),
            temperature,
            tl.sum(tl.where(here, top, 0.0), 0),
            _cutoff(cutoffs + begin + correct, CUT),
            tl.load(last_coins + request),
            VOCABULARY,
            CHUNK,
            CHUNKS,
            SLOTS,
            PROPOSED,
            MAPPED,
        )
        token = tl.where(here, last, draft)
    accepted = depth <= correct
    inside = depth < WIDTH
    token = tl.minimum(token, VOCABULARY - 1)  # the place of what is no number may lie beyond
    tl.store(tokens_out + dense, tl.where(accepted, token, 0).to(tl.int32), mask=inside)
    tl.store(places_out + dense, tl.where(accepted, dense, -1), mask=inside)
    tl.store(lens_out + request, correct + 1)
    if BINS > 0:
        own = confidence + request * confidence_stride
        observe_chain(
            own,
            requests,
            edges,
            table,
            offsets,
            counts,
            request,
            depth,
            tested,
            correct,
            depths,
            kept,
            rate,
            limit,
            BINS,
            LEVELS,
        )


def sum_chunks(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    temperatures: torch.Tensor | None,
    cutoffs: torch.Tensor | None,
    places: int,
    width: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `_chunks_kernel` finds in each chunk of each dense row, of which there are ``places``. One launch.

    Without temperatures the likeliest tokens are looked for; without cutoffs all are sampled.

    Returns:
        Peaks and masses, float32 ``[places * chunks]``.
    """
    chunks = chunks_of(logits)
    peaks, masses = (torch.empty(places * chunks, dtype=torch.float32, device=logits.device) for _ in range(2))
    read = [qo_indptr if one is None else one for one in (temperatures, cutoffs)]  # what is None is not read
    shape = logits.stride(0), logits.shape[1], CHUNK, chunks, temperatures is not None, cutoffs is not None
    _chunks_kernel((places, chunks, 1), (logits, qo_indptr, *read, peaks, masses), (width,), shape)
    return peaks, masses


def chunks_of(logits: torch.Tensor) -> int:
    """How many chunks a row has."""
    return -(-logits.shape[1] // CHUNK)


def accept_chains_triton(
    logits: torch.Tensor,
    qo_indptr: torch.Tensor,
    chains: torch.Tensor,
    sampling: ChainSampling | None,
    accepted: AcceptedChains,
    observation: Observation | None = None,
) -> None:
    """See `tessera_kernels.ops.accept.accept_chains.accept_chains`. Two launches: chunks of rows, then requests."""
    bs, width = chains.shape
    unread = accepted.lens
    temperatures, coins, last_coins, single, total, cutoffs, proposals, draft_places = sampling or _GREEDY
    sums = sum_chunks(logits, qo_indptr, temperatures, cutoffs, bs * width, width)
    asked = temperatures, coins, last_coins, cutoffs, proposals, draft_places
    sampled = [unread if one is None else one for one in asked]
    chunks = chunks_of(logits)
    known = 0 if proposals is None else proposals.shape[2]
    shape = logits.stride(0), logits.shape[1], CHUNK, chunks, temperatures is not None, cutoffs is not None
    if observation is None:
        learnt, depths, bins, confidence_stride = (unread,) * 6, 1, 0, 0
    else:
        confidence, requests, model = observation
        learnt = confidence, requests, *model
        (depths, bins), confidence_stride = model.logits.shape, confidence.stride(0)
    _accept_kernel(
        (bs, 1, 1),
        (logits, qo_indptr, chains, *sampled, *sums, *accepted, *learnt),
        (single, total, confidence_stride, depths, OFFSET_KEPT, OFFSET_RATE, OFFSET_LIMIT),
        (
            *(width, *shape, known, draft_places is not None),
            *(power_of_2(width), power_of_2(chunks), bins, max(bins.bit_length() - 1, 0)),
        ),
    )
