"""What the steps of this server cost: its own captured graphs, replayed and timed before anything is served.

With tensor parallelism a graph waits for those of the other ranks: all of them replay the same, in the same order, and
what the first one finds is the profile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout
from tqdm import tqdm

from tessera.tilespec import cache
from tessera.tilespec.cache import Profile
from tessera.tilespec.calibration import Calibrations
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.nominal import nominal
from tessera.tilespec.whole_steps import with_whole_steps
from tessera_kernels.triton.device.launcher import power_of_2
from tessera_patches.apply import start_error
from tessera_patches.tilespec.draft.vocabulary import vocabulary
from tessera_patches.tilespec.start import facts as tilespec_facts
from tessera_patches.tilespec.start.rehearsal import Asks, Rehearsal, assign_no_slots, longest, rehearsal

logger = logging.getLogger(__name__)

_EXTEND = "this --speculative-draft-attention-backend (SGLang captures the draft-extend of triton)"
_DRAFT = "this --speculative-draft-attention-backend"

_WAKE_SECONDS = 0.3
_WARM_UPS = 2
_REPLAYS = 5
_MEMORY_BOUND = 16
"""Requests whose contexts are made long: the cache's share grows with cached tokens, whoever has them."""
_LONG = 8192
_LENGTHS = (1 / 16, 1 / 2, 1)
"""Contexts to measure whole steps at, as shares of the longest."""
_SHORT = 16
_SAMPLED = 8
"""Requests of the rehearsal that samples: kernels are the same for more, and probabilities of all tokens are large."""


def profile(worker: Any, states: dict[int, Any], ragged: Any, calibrations: Calibrations) -> Profile:
    """The profile of a worker: from the cache if a spot check agrees with it, else measured and kept there.

    Afterwards every kernel of every kind of step has run once.

    Args:
        worker: whose graphs exist.
        states: SGLang's runtime states by number of drafted tokens.
        ragged: graphs for verifications in part, or None.
        calibrations: what is known of drafts where nothing is kept.
    """
    begin = time.perf_counter()
    if torch.device(worker.device).type != "cuda":
        _rehearse(worker, states, None)
        return Profile({}, nominal(sorted(states), worker.req_to_token_pool.req_to_token.shape[0]), calibrations)
    sizes = sorted(_graphs(states[0].target_graph_runner, "--disable-cuda-graph").capture_bs)
    tiers = [] if ragged is None else ragged.capture_num_tokens
    facts = tilespec_facts.facts(worker.server_args, sorted(states), sizes, tiers)
    ranks = get_tp_group()
    first = ranks.rank_in_group == 0
    known = ranks.broadcast_object(_cached(facts) if first else None)
    calibrations = calibrations if known is None else known.calibrations
    found = None if known is None or _stale(known, states, sizes) else known
    if found is None:
        # Graphs before rehearsals: these leave their long contexts in the buffers of the graphs.
        graphs = _graph_costs(worker, states, ragged)
        _rehearse(worker, states, ragged)
        found = Profile(facts, _whole_steps(worker, graphs), calibrations)
        if first:
            cache.save(found)
    else:
        _rehearse(worker, states, ragged)
    if first:
        logger.info("tessera: the cost profile is %s, after %.1f s", found.key, time.perf_counter() - begin)
    return found


def _cached(facts: dict[str, Any]) -> Profile | None:
    """The known profile, if there is one that can be read."""
    try:
        return cache.load(facts)
    except cache.ProfileUnusable as error:
        logger.warning("tessera: the cost profile is measured anew: %s", error)
        return None


def _stale(known: Profile, states: dict[int, Any], sizes: list[int]) -> bool:
    """Whether plain verification of the smallest or of the greatest batch takes another time than it says."""
    runner, ends = states[0].target_graph_runner, [sizes[0], sizes[-1]]
    _fill(runner, runner.model_runner.model_config.vocab_size)  # as when it was measured
    _wake(runner)
    profiled = [float(known.costs.uniform[1].at(size)) for size in ends]
    ranks = get_tp_group()
    stale = ranks.broadcast_object(cache.spot_check(profiled, [_replayed(runner, size) for size in ends]))
    if stale and ranks.rank_in_group == 0:
        logger.warning("tessera: the cost profile is measured anew: %s", stale)
    return bool(stale)


def _graph_costs(worker: Any, states: dict[int, Any], ragged: Any) -> CostTable:
    """Every graph over short contexts."""
    _wake(states[0].target_graph_runner)
    vocabularies = worker.target_worker.model_config.vocab_size, vocabulary(worker.draft_worker)
    uniform, draft, extend = {}, {}, {}
    with _bar(sorted(states), "timing graphs", "width") as progress:
        for steps in progress:
            state = states[steps]
            uniform[steps + 1] = _timed(state.target_graph_runner, vocabularies[0])
            if steps:
                extends = _graphs(state.cuda_graph_runner_for_draft_extend, _EXTEND)
                if extends.captured_req_width != steps + 1:
                    raise RuntimeError(f"the draft-extend of {steps} drafted tokens was captured for another number")
                extend[steps + 1] = _timed(extends, vocabularies[0])
                # The first tokens come with the draft-extend: one step is no forward of its own.
                drafts = None if state.speculative_num_steps == 1 else _graphs(state.cuda_graph_runner, _DRAFT)
                draft[steps] = Curve([1], [0.0]) if drafts is None else _timed(drafts, vocabularies[1])
    tiers = None if ragged is None else _timed(ragged, vocabularies[0], ragged.capture_num_tokens)
    return CostTable(
        tiers=tiers,
        uniform=uniform,
        draft=draft,
        extend=extend,
        kv_seconds=dict.fromkeys(sorted(states), 0.0),
        host_seconds=0.0,
        batch_sizes=uniform[1].sizes,
    )


def _whole_steps(worker: Any, graphs: CostTable) -> CostTable:
    """The profile with whole steps, as `tessera.tilespec.whole_steps.with_whole_steps` takes them."""
    sizes, steps = graphs.batch_sizes, graphs.steps
    bs = max(size for size in sizes if size <= max(_MEMORY_BOUND, sizes[0]))
    most = min(longest(worker, bs), _LONG)
    contexts = sorted({max(1, int(share * most)) for share in _LENGTHS})
    seconds = np.empty((len(contexts), len(steps)))
    for row, context in enumerate(_bar(contexts, "timing whole steps", "context")):
        with rehearsal(worker, bs, context) as rehearsed:
            seconds[row] = [rehearsed.seconds(count) for count in steps]
    return with_whole_steps(graphs, bs, contexts, seconds)


def _rehearse(worker: Any, states: dict[int, Any], ragged: Any) -> None:
    """Run each kind of step once: its kernels are compiled now, and what is wrong with it shows now.

    Of our kernels some are compiled for each width, for sampling again, and one for logits of which log-probabilities
    are wanted.
    """
    on_cpu = torch.device(worker.device).type == "cpu"
    most = worker.req_to_token_pool.size
    sizes = [min(2, most)] if on_cpu else _sizes(states[0].target_graph_runner.max_bs)
    tiers = [] if ragged is None else ragged.capture_num_tokens
    least = min(filter(None, states))
    for place, bs in enumerate(_bar(sizes, "rehearsing", "batch size")):
        assign_no_slots(worker, bs)
        with rehearsal(worker, bs, _SHORT) as rehearsed:
            _each_width(rehearsed, bs, sorted(states), tiers, place)
            padded = [tier for tier in tiers if tier >= bs * (least + 1)]
            if padded:
                rehearsed.step(least, padded[0])
            if on_cpu:
                rehearsed.step(max(states), tokens=3)
    few = min(_SAMPLED, sizes[-1])
    for asks in _bar([Asks.TEMPERATURE, Asks.TRUNCATED, Asks.LOGPROBS], "rehearsing", "kind"):
        with rehearsal(worker, few, _SHORT, asks) as rehearsed:
            _each_width(rehearsed, few, sorted(states), tiers, 0)
    for tier in _bar(_kinds_of_tiers(tiers, ragged), "rehearsing", "tier"):
        _pad(ragged, tier)
        with rehearsal(worker, min(-(-tier // 2), ragged.max_bs), _SHORT) as rehearsed:
            rehearsed.step(max(states), tier)


def _pad(ragged: Any, tier: int) -> None:
    """SGLang's kernels that pad a batch to its graph: compiled for each size of both that Triton tells apart."""
    slots = ragged.slots(tier)
    for bs in (1, 2, 16):
        if bs <= slots:
            lens = torch.ones(bs, dtype=torch.int32, device=ragged.device)
            layout = RaggedVerifyLayout.from_verify_lens_device(verify_lens=lens, graph_num_tokens=tier)
            layout.padded_to_bucket(padded_bs=slots)


def _each_width(rehearsed: Rehearsal, bs: int, widths: list[int], tiers: list[int], place: int) -> None:
    """Verifications of all tokens, and of some, by every number of drafted tokens."""
    for steps in widths:
        rehearsed.step(steps)
        fitting = [tier for tier in tiers if bs <= tier < bs * (steps + 1)]
        if fitting:
            rehearsed.step(steps, fitting[place % len(fitting)])


def _kind(size: int) -> tuple[int, bool]:
    """What Triton compiles a kernel for: the power of two that a block has room in, and whether 16 divides the size."""
    return power_of_2(size), size % 16 == 0


def _sizes(most: int) -> list[int]:
    """A batch size of each kind: the least, and the greatest of all."""
    return sorted({_kind(size): size for size in [*range(most, 0, -1), most]}.values())


def _kinds_of_tiers(tiers: list[int], ragged: Any) -> list[int]:
    """The least tier of each kind: by how many requests its graph is for, and whether 16 divides its tokens."""
    return sorted({(_kind(ragged.slots(tier)), tier % 16 == 0): tier for tier in sorted(tiers, reverse=True)}.values())


def _bar(items: Sequence[Any], doing: str, unit: str) -> Any:
    """One bar, not one for each rank, and none where there is nothing to wait for."""
    hidden = len(items) <= 1 or get_tp_group().rank_in_group > 0
    return tqdm(items, desc=f"tessera: {doing}", unit=unit, disable=hidden)


def _graphs(runner: Any, option: str) -> Any:
    """The runner; ends the process where there is none: that stage's time would be the host's, and unknown."""
    if runner is None or not isinstance(runner.backend, FullCudaGraphBackend):
        raise start_error(f"--tile-spec needs every stage as a CUDA graph, and there is none with {option}")
    return runner


def _timed(runner: Any, tokens: int, sizes: list[int] | None = None) -> Curve:
    """Seconds of each of a runner's graphs, by their size, over random tokens and states."""
    _fill(runner, tokens)
    sizes = sorted(sizes or runner.capture_bs)
    return Curve(sizes, [_replayed(runner, size) for size in sizes])


def _fill(runner: Any, tokens: int) -> None:
    """Random tokens and states in a runner's buffers: equal ones would all wake the same experts."""
    buffers = runner.buffers
    for name in ("input_ids", "topk_index"):
        ids = getattr(buffers, name, None)
        if ids is not None:
            ids.random_(tokens)
    states = getattr(buffers, "hidden_states", None)
    if states is not None:
        states.normal_()


def _wake(runner: Any) -> None:
    """An idle GPU's clock is low, and takes some time to rise."""
    end, share = time.perf_counter() + _WAKE_SECONDS, get_tp_group().broadcast_object
    while share(time.perf_counter() < end):
        runner.backend.replay(runner._make_graph_key(runner.max_bs), None)
        torch.cuda.synchronize()


def _replayed(runner: Any, size: int) -> float:
    key = runner._make_graph_key(size)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
    with runner.backend.replay_session():
        for _ in range(_WARM_UPS):
            runner.backend.replay(key, None)
        for event in events:
            event.record()
            runner.backend.replay(key, None)
    torch.cuda.synchronize()
    return float(median(a.elapsed_time(b) for a, b in pairwise(events))) / 1e3
