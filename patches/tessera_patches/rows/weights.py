"""Weight updates: rows of older weights are never returned, and who needs rows has its prefix computed again.

Scheduler process, every tensor-parallel rank: all must find the same prefixes.
"""

from typing import Any

from sglang.srt.constants import GPU_MEMORY_ALL_TYPES, GPU_MEMORY_TYPE_KV_CACHE

from tessera_patches.engine import requests
from tessera_patches.engine.batches import waiting
from tessera_patches.engine.model import is_draft
from tessera_patches.engine.ranks import has_stages, on_any
from tessera_patches.engine.requests import cache_key, set_cache_key
from tessera_patches.rows import runtime, state
from tessera_patches.rows.state import State

_NOTHING_LOADED = (
    "Failed to get model loader",
    "Failed to get weights iterator",
    "Online weight updates are not supported",
    "IPC weight update failed: ImportError",
)
"""How messages begin of updates that failed before a weight was touched. The bodies that have them are locked."""


def forget_rows(result: tuple[bool, str] | None, updater: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER each ``WeightUpdater.update_weights_from_*``: the rows so far are forgotten, unless nothing was loaded.

    And after ``begin_weight_update`` and ``end_weight_update``, which say nothing: another machine may write between.
    """
    runner = updater.get_model_runner()
    if is_draft(runner):
        return
    success, message = (True, "") if result is None else result
    touched = success or not message.startswith(_NOTHING_LOADED)
    # Ranks that count differently would find different prefixes, and wait for ever. A stage gets the update when the
    # one before it is done with it, so stages cannot ask each other: all count each update.
    if not has_stages(runner) and not on_any(touched):
        return
    runtime.generations.note_update()
    if runtime.rows is not None:
        runtime.rows.invalidate()
    if runtime.host_rows is not None:
        runtime.host_rows.invalidate()
    for req in [] if runtime.scheduler is None else waiting(runtime.scheduler):
        begin(req)


def note_flush(result: bool, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``Scheduler.flush_cache``, which does nothing where requests run, or wait (since 0.5.20 unless paused)."""
    if result:
        runtime.generations.note_flush()
        runtime.sessions.clear()


def begin(req: Any) -> None:
    """Note the weights of a waiting request: the current ones for all its rows, but those of a session's earlier turns.

    A stream that sent what was read with older weights cannot take it back: it stays outdated.
    """
    own: State = state.of(req)
    first = _first_generation(req)
    if not own.rows:
        return
    if own.generation is None:
        own.original_key, own.generation = cache_key(req), first
    set_cache_key(req, runtime.generations.key(own.original_key))
    is_current = first == runtime.generations.number
    if is_current and is_outdated(req) and not (req.stream and any(own.done.values())):
        own.generation = runtime.generations.number
        own.done.clear()


def _first_generation(req: Any) -> int:
    """The generation of the weights that compute the first row of a waiting request, or of its session's first turn."""
    session = requests.keeping_session(req)
    if session is None:
        return runtime.generations.number
    if not requests.has_turns(session) and not requests.is_retracted(req):  # a session may keep what was retracted
        runtime.sessions.pop(session, None)
    return runtime.sessions.setdefault(session, runtime.generations.number)


def is_outdated(req: Any) -> bool:
    """Whether the weights have changed since its first row was computed."""
    own = state.of(req)
    return own.generation is not None and own.generation != runtime.generations.number


def release(updater: Any, recv_req: Any) -> None:
    """BEFORE ``release_memory_occupation``: the row store's memory goes with the KV cache's."""
    if runtime.rows is not None and _frees_rows(updater, recv_req):
        runtime.rows.release()


def resume(result: Any, updater: Any, recv_req: Any) -> None:
    """AFTER ``resume_memory_occupation``: the row store's memory is back, with undefined contents."""
    if runtime.rows is not None and _frees_rows(updater, recv_req):
        runtime.rows.resume()


def _frees_rows(updater: Any, recv_req: Any) -> bool:
    return updater.memory_saver_adapter.enabled and GPU_MEMORY_TYPE_KV_CACHE in (recv_req.tags or GPU_MEMORY_ALL_TYPES)
