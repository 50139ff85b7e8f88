"""SGLang's prefix cache and its map of slots."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.pool_configurator import HybridSWAPoolConfigurator

from tessera_patches.core.changes import TemporaryFields
from tessera_patches.engine.requests import cache_key, prompt_ids, row_of

if TYPE_CHECKING:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.memory_pool import KVCache, MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2


if "cache_salt" in signature(RadixKey).parameters:  # since 0.5.18

    def radix_key(req: Req) -> RadixKey:
        """The key under which a request's prompt is in the cache."""
        return RadixKey(token_ids=prompt_ids(req), extra_key=cache_key(req), cache_salt=req.cache_salt)

else:

    def radix_key(req: Req) -> RadixKey:
        """The key under which a request's prompt is in the cache."""
        return RadixKey(token_ids=prompt_ids(req), extra_key=cache_key(req))


if hasattr(MatchResult, "device_prefix_len"):  # since 0.5.20

    def cached_slots(scheduler: Scheduler, req: Req) -> torch.Tensor:
        """The KV slots of the longest prefix of a request's prompt that is cached, ``[n]`` int64."""
        cache: BasePrefixCache = prefix_cache(scheduler)
        match: MatchResult = cache.match_prefix(MatchPrefixParams(key=radix_key(req), req=req))
        path: torch.Tensor = cache.path_device_indices(match.last_device_node)
        return path[: match.device_prefix_len]

else:

    def cached_slots(scheduler: Scheduler, req: Req) -> torch.Tensor:
        """The KV slots of the longest prefix of a request's prompt that is cached, ``[n]`` int64."""
        cache: BasePrefixCache = prefix_cache(scheduler)
        match: MatchResult = cache.match_prefix(MatchPrefixParams(key=radix_key(req), req=req))
        slots: torch.Tensor = match.device_indices
        return slots


_KEEPS = "checkpoint" if "checkpoint" in signature(release_kv_cache).parameters else "is_insert"  # since 0.5.21


def release(req: Req, cache: BasePrefixCache) -> None:
    """Release the slots of a request, of which the cache keeps nothing."""
    release_kv_cache(req, cache, **{_KEEPS: False})


def prefix_cache(scheduler: Scheduler) -> BasePrefixCache:
    """The tree of cached prefixes."""
    return scheduler.tree_cache


def request_pool(
    owner: Scheduler | ModelRunner | ScheduleBatch | EAGLEWorkerV2 | TorchNativeAttnBackend,
) -> ReqToTokenPool:
    """What gives requests their rows of the slot map."""
    return owner.req_to_token_pool


def take_row(pool: ReqToTokenPool, req: Req) -> bool:
    """Give a request a row of the slot map; False where none is left. `free_row` takes it back.

    The ``alloc`` of a pool with states beside the KV takes a slot of those, too, which ``free`` leaves.
    """
    return ReqToTokenPool.alloc(pool, [req]) is not None


def free_row(pool: ReqToTokenPool, req: Req) -> None:
    """Give a row of ``req_to_token`` back to SGLang."""
    pool.free(req)


def write_slots(pool: ReqToTokenPool, req: Req, slots: torch.Tensor) -> None:
    """Write the KV slots ``[n]`` of a request's first tokens into its row."""
    pool.write((row_of(req), slice(0, len(slots))), slots.to(torch.int32))


def slot_allocator(owner: ModelRunner | EAGLEWorkerV2) -> BaseTokenToKVPoolAllocator:
    """What gives requests their KV slots."""
    return owner.token_to_kv_pool_allocator


def kv_pool(owner: ModelRunner | TorchNativeAttnBackend) -> KVCache:
    """The keys and values of all slots."""
    return owner.token_to_kv_pool


def write_kv(pool: KVCache, layer: RadixAttention, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Write keys and values ``[n, H, D]`` of a layer to their slots ``[n]``."""
    pool.set_kv_buffer(layer, KVWriteLoc(slots, None), k, v)


def layer_kv(pool: KVCache, layer: RadixAttention) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's keys and values of all slots, ``[slots, H, D]`` each."""
    return pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)


class _WindowSlots:
    """The slot map ``[requests, context]``, read as slots of the pool that windows have."""

    def __init__(self, slots: torch.Tensor, windows: torch.Tensor) -> None:
        self._slots, self._windows = slots, windows

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self._windows[self._slots[place]]


def with_window_slots(backend: TorchNativeAttnBackend, layer: int) -> AbstractContextManager[None]:
    """Have the attention of a layer read the slots of the pool in which its keys lie, in a ``with`` block."""
    pool: KVCache = kv_pool(backend)
    windows = _window_slots(pool, layer) if isinstance(pool, SWAKVPool) else None
    if windows is None:
        return nullcontext()
    slots = SimpleNamespace(req_to_token=_WindowSlots(slot_map(backend), windows))
    return TemporaryFields(with_window_slots, backend, req_to_token_pool=slots)


def _window_slots(pool: SWAKVPool, layer: int) -> torch.Tensor | None:
    """The window pool's slot of each KV slot, ``[slots]`` int64, 0 where it was freed; None for a full layer."""
    _, is_window = pool.layers_mapping[layer]
    slots: torch.Tensor = pool.full_to_swa_index_mapping
    return slots if is_window else None


def slot_map(owner: ModelRunner | ScheduleBatch | EAGLEWorkerV2 | TorchNativeAttnBackend) -> torch.Tensor:
    """``req_to_token``, ``[requests, context]`` int32."""
    return slot_map_of(request_pool(owner))


def slot_map_of(pool: ReqToTokenPool) -> torch.Tensor:
    """``req_to_token`` of the pool that gives requests their rows, ``[requests, context]`` int32."""
    slots: torch.Tensor = pool.req_to_token
    return slots


def request_limit(worker: EAGLEWorkerV2) -> int:
    """How many requests can have a row of the slot map at a time."""
    pool: ReqToTokenPool = request_pool(worker)
    size: int = pool.size
    return size


def slot_count(runner: ModelRunner) -> int:
    """How many KV slots there are, one page beyond those that requests get: padding writes there."""
    pool: KVCache = kv_pool(runner)
    return int(pool.size + pool.page_size)


def allocatable_slots(owner: ModelRunner | EAGLEWorkerV2) -> int:
    """How many KV slots requests and the cache can have."""
    allocator: BaseTokenToKVPoolAllocator = slot_allocator(owner)
    size: int = allocator.size
    return size


def reserved_slots() -> int:
    """The number of KV slots that SGLang reserves for a decode step of a request, after those of its tokens."""
    return int(get_alloc_reserve_per_decode())


def _add_full_bytes(sizes: HybridSWAPoolConfigurator, count: int) -> None:
    """Add to the cost of a slot of the full pool, by which it is sized beside a window pool of a fixed size."""
    fused: int | None = _fused_bytes(sizes)
    if fused is None:
        sizes._full_per_token += count / (sizes._full_layers_num + sizes._draft_full_layers_num)
    else:
        _set_fused_bytes(sizes, fused + count)


if hasattr(HybridSWAPoolConfigurator, "_full_cell_bytes"):  # in 0.5.23

    def _fused_bytes(sizes: HybridSWAPoolConfigurator) -> int | None:
        """What a token costs where the draft model's KV lies beside the target's."""
        entry: int | None = sizes._fused_full_entry
        return entry

    def _set_fused_bytes(sizes: HybridSWAPoolConfigurator, count: int) -> None:
        sizes._fused_full_entry = count

else:

    def _fused_bytes(sizes: HybridSWAPoolConfigurator) -> int | None:
        """Nothing: a draft model's KV has a pool of its own."""
        return None

    def _set_fused_bytes(sizes: HybridSWAPoolConfigurator, count: int) -> None:
        raise NotImplementedError


def add_token_bytes(sizes: DefaultPoolConfigurator | HybridSWAPoolConfigurator, count: int) -> None:
    """Have each token cost so many more bytes when the KV pool is sized; of two pools, each slot of the full one.

    Args:
        sizes: what has been made to size the pool, and has not sized it yet.
        count: bytes.
    """
    sizes._cell_size += count
    if isinstance(sizes, HybridSWAPoolConfigurator):
        _add_full_bytes(sizes, count)


def kv_bytes(runner: ModelRunner) -> int:
    """Bytes of the KV cache. Pools of keys and values report two sizes, pools of latents (MLA, DSA) one."""
    pool: MHATokenToKVPool | MLATokenToKVPool = kv_pool(runner)
    sizes = pool.get_kv_size_bytes()
    return int(sum(sizes) if isinstance(sizes, tuple) else sizes)


def _used_full_slots(allocator: SWATokenToKVPoolAllocator) -> tuple[int, int]:
    """Taken slots and all slots of the full pool, where a token keeps its slot."""
    size: int = allocator.size_full
    return size - allocator.full_available_size(), size


def used_slots(runner: ModelRunner) -> tuple[int, int]:
    """The number of KV slots that requests and the cache have taken, and the number of all."""
    allocator: BaseTokenToKVPoolAllocator = slot_allocator(runner)
    if isinstance(allocator, SWATokenToKVPoolAllocator):
        return _used_full_slots(allocator)
    return allocator.size - allocator.available_size(), allocator.size
