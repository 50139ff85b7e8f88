"""What the steps of this server cost: its own captured graphs, replayed and timed before anything is served."""

from __future__ import annotations

import logging
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from tessera.tilespec import cache
from tessera.tilespec.cache import Profile
from tessera.tilespec.calibration import Calibration
from tessera.tilespec.costs import CostTable, Curve
from tessera.tilespec.nominal import nominal
from tessera_patches import tilespec_facts
from tessera_patches.apply import refusing

logger = logging.getLogger(__name__)

_EXTEND = "this --speculative-draft-attention-backend (SGLang captures the draft-extend of triton)"

_WARM_UPS = 2
_REPLAYS = 5
_COPY_BYTES = 1 << 30


def profile(worker: Any, states: dict[int, Any], ragged: Any, calibration: Calibration) -> Profile:
    """The profile of a worker: from the cache if a spot check agrees with it, else measured and kept there.

    Args:
        worker: whose graphs exist.
        states: SGLang's runtime states by number of drafted tokens.
        ragged: graphs for verifications in part, or None.
        calibration: kept with a new profile.
    """
    if torch.device(worker.device).type != "cuda":
        return Profile({}, nominal(sorted(states), worker.req_to_token_pool.req_to_token.shape[0]), calibration)
    sizes = sorted(_graphs(states[0].target_graph_runner, "--disable-cuda-graph").capture_bs)
    tiers = [] if ragged is None else ragged.capture_num_tokens
    facts = tilespec_facts.facts(worker.server_args, sorted(states), sizes, tiers)
    try:
        known = cache.load(facts)
    except cache.ProfileUnusable as error:
        logger.warning("tessera: the cost profile is measured anew: %s", error)
        known = None
    if known is not None:
        stale = _spot_check(known.costs, states, sizes)
        if not stale:
            logger.info("tessera: the cost profile is %s", known.key)
            return known
        logger.warning("tessera: the cost profile is measured anew: %s", stale)
    fresh = Profile(facts, _measured(worker, states, ragged), calibration)
    logger.info("tessera: the cost profile is %s", cache.save(fresh))
    return fresh


def _spot_check(costs: CostTable, states: dict[int, Any], sizes: list[int]) -> str:
    """Plain verification of the smallest and of the greatest batch, again."""
    runner = states[0].target_graph_runner
    ends = [sizes[0], sizes[-1]]
    return cache.spot_check([float(costs.uniform[1].at(size)) for size in ends], [_replayed(runner, s) for s in ends])


def _measured(worker: Any, states: dict[int, Any], ragged: Any) -> CostTable:
    sizes = sorted(states[0].target_graph_runner.capture_bs)
    uniform, draft, extend = {}, {}, {}
    with tqdm(sorted(states), desc="tessera: timing graphs", unit="width") as progress:
        for steps in progress:
            state = states[steps]
            uniform[steps + 1] = _timed(state.target_graph_runner, sizes)
            if steps:
                extend[steps + 1] = _timed(_graphs(state.cuda_graph_runner_for_draft_extend, _EXTEND), sizes)
                # The first token comes with the draft-extend: one step is no forward of its own.
                draft[steps] = (
                    _timed(_graphs(state.cuda_graph_runner, _EXTEND), sizes) if steps > 1 else Curve([1], [0.0])
                )
    return CostTable(
        tiers=None if ragged is None else _timed(ragged, ragged.capture_num_tokens),
        slots=None,
        uniform=uniform,
        draft=draft,
        extend=extend,
        kv_seconds=_bytes_per_token(worker.target_worker.model_runner) * _seconds_per_byte(worker.device),
        host_seconds=0.0,
        batch_sizes=uniform[1].sizes,
    )


def _graphs(runner: Any, option: str) -> Any:
    """The runner; ends the process where there is none: that stage's time would be the host's, and unknown."""
    if runner is None:
        raise SystemExit(refusing(f"--tile-spec needs every stage as a CUDA graph, and there is none with {option}"))
    return runner


def _timed(runner: Any, sizes: list[int]) -> Curve:
    """Seconds of each of a runner's graphs, by their size, over whatever its static buffers hold."""
    sizes = sorted(sizes)
    return Curve(sizes, [_replayed(runner, size) for size in sizes])


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


def _bytes_per_token(runner: Any) -> float:
    """What attention reads for each cached token of a request."""
    pool = runner.token_to_kv_pool
    return float(sum(pool.get_kv_size_bytes())) / int(pool.size)


def _seconds_per_byte(device: str) -> float:
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    target.copy_(source)
    begin.record()
    target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / (2 * _COPY_BYTES)
