"""The cost profile of this server: its captured graphs, replayed and timed before anything is served.

With tensor parallelism, graphs wait for those of the other ranks. All ranks replay the same graphs in the same order,
and the profile is the first rank's.
"""

import logging
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
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
from tessera_patches.core.apply import start_error
from tessera_patches.engine.cache import request_limit, slot_map
from tessera_patches.engine.model import vocabulary
from tessera_patches.engine.options import options
from tessera_patches.engine.ranks import broadcast_object, tp_rank
from tessera_patches.engine.workers import graph_key, input_buffers, target_runner
from tessera_patches.tilespec.draft.vocabulary import draft_vocab_size
from tessera_patches.tilespec.start import facts as tilespec_facts
from tessera_patches.tilespec.start.warm_up import (
    SamplingKind,
    WarmUpBatch,
    longest_context,
    warm_up_batch,
    warm_up_slot_assignment,
)

logger = logging.getLogger(__name__)

_EXTEND = "this --speculative-draft-attention-backend (SGLang captures the draft-extend of triton)"
_DRAFT = "this --speculative-draft-attention-backend"

_CLOCK_SECONDS = 0.3
_WARM_UPS = 2
_REPLAYS = 5
_MEMORY_BOUND = 16
"""Requests of the whole steps that are timed; only the sum of their cached tokens matters."""
_LONG = 8192
_LENGTHS = (1 / 16, 1 / 2, 1)
"""Context lengths of whole steps, relative to the greatest."""
_SHORT = 16
_SAMPLED = 8
"""Requests of sampled warm-up steps. More run the same kernels, and need much memory for probabilities."""


def profile(worker: Any, states: dict[int, Any], ragged: Any, calibrations: Calibrations) -> Profile:
    """The profile of a worker, from the cache if a spot check confirms it, else measured and cached.

    Also runs all kernels of all kinds of steps once.

    Args:
        worker: a worker whose graphs are captured.
        states: SGLang's runtime states by number of draft tokens.
        ragged: the graphs of ragged verifications, or None.
        calibrations: the calibrations if there is no cached profile.
    """
    begin = time.perf_counter()
    if torch.device(worker.device).type != "cuda":
        _warm_up(worker, states, None)
        return Profile({}, nominal(sorted(states), slot_map(worker).shape[0]), calibrations)
    sizes = sorted(_full_graphs(states[0].target_graph_runner, "--disable-cuda-graph").capture_bs)
    tiers = [] if ragged is None else ragged.capture_num_tokens
    facts = tilespec_facts.facts(options(worker), sorted(states), sizes, tiers)
    first = tp_rank() == 0
    known = broadcast_object(_cached(facts) if first else None)
    calibrations = calibrations if known is None else known.calibrations
    found = None if known is None or _stale(known, states, sizes) else known
    if found is None:
        # Graphs first: warm-up steps leave long contexts in their buffers.
        graphs = _graph_costs(worker, states, ragged)
        _warm_up(worker, states, ragged)
        found = Profile(facts, _whole_steps(worker, graphs), calibrations)
        if first:
            cache.save(found)
    else:
        _warm_up(worker, states, ragged)
    if first:
        logger.info("tessera: the cost profile is %s, after %.1f s", found.key, time.perf_counter() - begin)
    return found


def _cached(facts: dict[str, Any]) -> Profile | None:
    """The cached profile, if there is a readable one."""
    try:
        return cache.load(facts)
    except cache.ProfileUnusable as error:
        logger.warning("tessera: the cost profile is measured again: %s", error)
        return None


def _stale(known: Profile, states: dict[int, Any], sizes: list[int]) -> bool:
    """Whether the times of plain decoding, for the smallest and the greatest batch, differ from the profile's."""
    runner, ends = states[0].target_graph_runner, [sizes[0], sizes[-1]]
    _fill(runner, vocabulary(runner.model_runner))  # as when it was measured
    _raise_clock(runner)
    profiled = [float(known.costs.uniform[1].at(size)) for size in ends]
    stale = broadcast_object(cache.spot_check(profiled, [_replayed(runner, size) for size in ends]))
    if stale and tp_rank() == 0:
        logger.warning("tessera: the cost profile is measured again: %s", stale)
    return bool(stale)


def _graph_costs(worker: Any, states: dict[int, Any], ragged: Any) -> CostTable:
    """The costs of all graphs over short contexts."""
    _raise_clock(states[0].target_graph_runner)
    vocabularies = vocabulary(target_runner(worker)), draft_vocab_size(worker.draft_worker)
    uniform, draft, extend = {}, {}, {}
    with _bar(sorted(states), "timing graphs", "width") as progress:
        for steps in progress:
            state = states[steps]
            uniform[steps + 1] = _time_graphs(state.target_graph_runner, vocabularies[0])
            if steps:
                extends = _full_graphs(state.cuda_graph_runner_for_draft_extend, _EXTEND)
                if extends.captured_req_width != steps + 1:
                    raise RuntimeError(f"the draft-extend of {steps} drafted tokens was captured for another number")
                extend[steps + 1] = _time_graphs(extends, vocabularies[0])
                # The draft-extend gives the first tokens: one draft step needs no forward.
                drafts = None if state.speculative_num_steps == 1 else _full_graphs(state.cuda_graph_runner, _DRAFT)
                draft[steps] = Curve([1], [0.0]) if drafts is None else _time_graphs(drafts, vocabularies[1])
    tiers = None if ragged is None else _time_graphs(ragged, vocabularies[0], ragged.capture_num_tokens)
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
    """Add the times of whole steps: `tessera.tilespec.whole_steps.with_whole_steps`."""
    sizes, steps = graphs.batch_sizes, graphs.steps
    bs = max(size for size in sizes if size <= max(_MEMORY_BOUND, sizes[0]))
    most = min(longest_context(worker, bs), _LONG)
    contexts = sorted({max(1, int(share * most)) for share in _LENGTHS})
    seconds = np.empty((len(contexts), len(steps)))
    for row, context in enumerate(_bar(contexts, "timing whole steps", "context")):
        with warm_up_batch(worker, bs, context) as batch:
            seconds[row] = [batch.seconds(count) for count in steps]
    return with_whole_steps(graphs, bs, contexts, seconds)


def _warm_up(worker: Any, states: dict[int, Any], ragged: Any) -> None:
    """Run each kind of step once, to compile its kernels, and to fail now if it fails.

    Some of our kernels are compiled for each width, and again for sampling and for log-probabilities.
    """
    on_cpu = torch.device(worker.device).type == "cpu"
    sizes = [min(2, request_limit(worker))] if on_cpu else _sizes(states[0].target_graph_runner.max_bs)
    tiers = [] if ragged is None else ragged.capture_num_tokens
    least = min(filter(None, states))
    for place, bs in enumerate(_bar(sizes, "warming up", "batch size")):
        warm_up_slot_assignment(worker, bs)
        with warm_up_batch(worker, bs, _SHORT) as batch:
            _each_width(batch, bs, sorted(states), tiers, place)
            padded = [tier for tier in tiers if tier >= bs * (least + 1)]
            if padded:
                batch.step(least, padded[0])
            if on_cpu:
                batch.step(max(states), tokens=3)
    few = min(_SAMPLED, sizes[-1])
    for kind in _bar([SamplingKind.TEMPERATURE, SamplingKind.TRUNCATED, SamplingKind.LOGPROBS], "warming up", "kind"):
        with warm_up_batch(worker, few, _SHORT, kind) as batch:
            _each_width(batch, few, sorted(states), tiers, 0)
    for tier in _bar(_kinds_of_tiers(tiers, ragged), "warming up", "tier"):
        _pad(ragged, tier)
        with warm_up_batch(worker, min(-(-tier // 2), ragged.max_bs), _SHORT) as batch:
            batch.step(max(states), tier)


def _pad(ragged: Any, tier: int) -> None:
    """Compile SGLang's kernels that pad a batch to its graph, for each pair of sizes that Triton compiles apart."""
    slots = ragged.slots(tier)
    for bs in (1, 2, 16):
        if bs <= slots:
            lens = torch.ones(bs, dtype=torch.int32, device=ragged.device)
            layout = RaggedVerifyLayout.from_verify_lens_device(verify_lens=lens, graph_num_tokens=tier)
            layout.padded_to_bucket(padded_bs=slots)


def _each_width(batch: WarmUpBatch, bs: int, widths: list[int], tiers: list[int], place: int) -> None:
    """Run steps with each number of draft tokens, that verify all of them or a part."""
    for steps in widths:
        batch.step(steps)
        fitting = [tier for tier in tiers if bs <= tier < bs * (steps + 1)]
        if fitting:
            batch.step(steps, fitting[place % len(fitting)])


def _kind(size: int) -> tuple[int, bool]:
    """The size class that Triton compiles a kernel for: the next power of two, and divisibility by 16."""
    return power_of_2(size), size % 16 == 0


def _sizes(most: int) -> list[int]:
    """The least batch size of each size class, and the greatest batch size."""
    return sorted({_kind(size): size for size in [*range(most, 0, -1), most]}.values())


def _kinds_of_tiers(tiers: list[int], ragged: Any) -> list[int]:
    """The least tier of each size class of its requests and divisibility of its tokens by 16."""
    return sorted({(_kind(ragged.slots(tier)), tier % 16 == 0): tier for tier in sorted(tiers, reverse=True)}.values())


def _bar(items: Sequence[Any], doing: str, unit: str) -> Any:
    """A progress bar on the first rank, if there is more than one item."""
    hidden = len(items) <= 1 or tp_rank() > 0
    return tqdm(items, desc=f"tessera: {doing}", unit=unit, disable=hidden)


def _full_graphs(runner: Any, option: str) -> Any:
    """The runner. Ends the process if it has no full CUDA graphs: the stage's time would depend on the host."""
    if runner is None or not isinstance(runner.backend, FullCudaGraphBackend):
        raise start_error(f"--tile-spec needs every stage as a CUDA graph, and there is none with {option}")
    return runner


def _time_graphs(runner: Any, tokens: int, sizes: list[int] | None = None) -> Curve:
    """The seconds of a runner's graphs by size, with random tokens and states."""
    _fill(runner, tokens)
    sizes = sorted(sizes or runner.capture_bs)
    return Curve(sizes, [_replayed(runner, size) for size in sizes])


def _fill(runner: Any, tokens: int) -> None:
    """Fill a runner's buffers with random tokens and states: equal ones would all use the same experts."""
    ids, states = input_buffers(runner)
    for buffer in ids:
        buffer.random_(tokens)
    if states is not None:
        states.normal_()


def _raise_clock(runner: Any) -> None:
    """Replay a graph until the clock of an idle GPU has risen."""
    end = time.perf_counter() + _CLOCK_SECONDS
    while broadcast_object(time.perf_counter() < end):
        runner.backend.replay(graph_key(runner, runner.max_bs), None)
        torch.cuda.synchronize()


def _replayed(runner: Any, size: int) -> float:
    key = graph_key(runner, size)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
    with runner.backend.replay_session():
        for _ in range(_WARM_UPS):
            runner.backend.replay(key, None)
        for event in events:
            event.record()
            runner.backend.replay(key, None)
    torch.cuda.synchronize()
    return float(median(a.elapsed_time(b) for a, b in pairwise(events))) / 1e3
