"""Requests that only read rows, all of which are there: answered at once, without a forward. Scheduler process.

SGLang computes at least one token of every prompt, for it wants logits. Rows need none: those of a prompt that is
cached whole lie in the store.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch

from tessera import config
from tessera_patches.engine import host_cache
from tessera_patches.engine.cache import cached_slots, free_row, request_pool, take_row, write_slots
from tessera_patches.engine.requests import is_retracted, note_cached, prompt_ids, wants_only_rows
from tessera_patches.rows import results, runtime, state, weights

logger = logging.getLogger(__name__)


def answer_cached(original: Callable[..., None], scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """AROUND ``Scheduler._add_request_to_queue``. Every rank finds the same, for all hold the same tree."""
    runtime.scheduler = scheduler
    weights.begin(req)
    try:
        slots = _all_slots(scheduler, req) if _only_reads(req) else None
    except Exception:  # the boundary to SGLang's scheduler: this only saves a forward
        logger.exception("tessera: request %s is computed, though its rows may be there", req.rid)
        slots = None
    pool = request_pool(scheduler)
    if slots is None or not take_row(pool, req):
        original(scheduler, req, *args, **kwargs)
        return
    # The tree knows tokens from the moment their forward is launched: rows are read when it is done.
    scheduler.device_module.current_stream().wait_stream(scheduler.forward_stream)
    write_slots(pool, req, slots)
    if runtime.service is not None:
        runtime.service.settle()
    note_cached(req, len(slots))
    req.update_finish_state()
    results.note_finished(None, req)
    req.time_stats.set_wait_queue_entry_time()
    req.time_stats.set_quick_finish_time()
    # Launches the read; whatever is launched later and could overwrite these slots waits for it.
    scheduler.output_streamer.stream_output([req], False)
    free_row(pool, req)


def _only_reads(req: Any) -> bool:
    if req.sampling_params.max_new_tokens != 0:
        return False
    return state.of(req).rows and req.to_finish is None and not is_retracted(req) and wants_only_rows(req)


def _all_slots(scheduler: Any, req: Any) -> torch.Tensor | None:
    """The KV slot of each of its tokens, ``[N]`` int64; None where one has none, or not its row yet."""
    slots = cached_slots(scheduler, req)
    if len(slots) != len(prompt_ids(req)):
        return None
    return slots if _are_there(scheduler) else None


def _are_there(scheduler: Any) -> bool:
    """Have the current stream wait for rows on their way from the host's memory; False where some have not begun.

    The tree knows a prefix that comes back from the moment it has slots.
    """
    if not config.active.host_cache:
        return True
    if host_cache.loads_wait(scheduler):
        return False
    scheduler.device_module.current_stream().wait_stream(host_cache.loading_stream(scheduler))
    return True
