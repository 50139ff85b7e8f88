"""Weight updates: rows of older weights are never returned, and who needs rows has its prefix computed again.

Scheduler process, every tensor-parallel rank: all must find the same prefixes.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.constants import GPU_MEMORY_ALL_TYPES, GPU_MEMORY_TYPE_KV_CACHE

from tessera.admission import EMBED_KEY, STATES_KEY, TOPLOC_KEY
from tessera_patches.core import carried
from tessera_patches.rows import runtime

PROVEN = "tessera_proven"
"""The attribute of SGLang's ``Req`` that says how many of its fingerprints were read."""
_GENERATION = "tessera_generation"
"""The attribute that says with which weights its first row is computed."""
_EXTRA_KEY = "tessera_extra_key"
"""The attribute that holds the ``extra_key`` with which the request came."""

_NOTHING_LOADED = (
    "Failed to get model loader",
    "Failed to get weights iterator",
    "Online weight updates are not supported",
    "IPC weight update failed: ImportError",
)
"""How messages begin of updates that failed before a weight was touched. The bodies that have them are locked."""


def changed(result: tuple[bool, str], updater: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER each ``WeightUpdater.update_weights_from_*``: the rows so far are forgotten, unless nothing was loaded."""
    runner = updater.get_model_runner()
    if runner.is_draft_worker:
        return
    success, message = result
    touched = success or not message.startswith(_NOTHING_LOADED)
    if not _on_any_rank(touched, runner.tp_group.cpu_group):
        return
    runtime.generations.changed()
    if runtime.rows is not None:
        runtime.rows.invalidate()
    for req in [] if runtime.scheduler is None else runtime.scheduler.waiting_queue:
        begin(req)


def _on_any_rank(found: bool, group: Any) -> bool:
    """Ranks that count differently would find different prefixes, and wait for each other forever."""
    flag = torch.tensor([found], dtype=torch.int32)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=group)
    return bool(flag.item())


def flushed(result: bool, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``Scheduler.flush_cache``, which does nothing where requests run or wait."""
    if result:
        runtime.generations.flushed()


def begin(req: Any) -> None:
    """A request waits: all its rows will be computed with the weights of now.

    A stream that sent fingerprints of older weights cannot take them back: it stays `outdated`.
    """
    asked = carried.of(req)
    if not any(asked.get(key) for key in (EMBED_KEY, STATES_KEY, TOPLOC_KEY)):
        return
    generation = runtime.generations.number
    req.extra_key = runtime.generations.key(vars(req).setdefault(_EXTRA_KEY, req.extra_key))
    if not hasattr(req, _GENERATION):
        setattr(req, _GENERATION, generation)
    elif outdated(req) and not (req.stream and getattr(req, PROVEN, 0)):
        setattr(req, _GENERATION, generation)
        setattr(req, PROVEN, 0)


def outdated(req: Any) -> bool:
    """Whether the weights have changed since its first row was computed."""
    generation = runtime.generations.number
    return bool(getattr(req, _GENERATION, generation) != generation)


def release(updater: Any, recv_req: Any) -> None:
    """BEFORE ``release_memory_occupation``: the row store's memory goes with the KV cache's."""
    if runtime.rows is not None and _frees_rows(updater, recv_req):
        runtime.rows.release()


def resume(result: Any, updater: Any, recv_req: Any) -> None:
    """AFTER ``resume_memory_occupation``: it is back, with anything in it."""
    if runtime.rows is not None and _frees_rows(updater, recv_req):
        runtime.rows.restore()


def _frees_rows(updater: Any, recv_req: Any) -> bool:
    return updater.memory_saver_adapter.enabled and GPU_MEMORY_TYPE_KV_CACHE in (recv_req.tags or GPU_MEMORY_ALL_TYPES)
