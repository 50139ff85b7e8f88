"""SGLang's prefix cache and its map of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from tessera_patches.engine.requests import cache_key, prompt_ids

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, MatchResult
    from sglang.srt.mem_cache.memory_pool import KVCache, MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
    from sglang.srt.model_executor.model_runner import ModelRunner


def radix_key(req: Req) -> RadixKey:
    """The key under which a request's prompt is in the cache."""
    return RadixKey(token_ids=prompt_ids(req), extra_key=cache_key(req))


def cached_slots(scheduler: Scheduler, req: Req) -> torch.Tensor:
    """The KV slots of the longest prefix of a request's prompt that is cached, ``[n]`` int64."""
    params = MatchPrefixParams(key=radix_key(req), req=req)
    cache: BasePrefixCache = prefix_cache(scheduler)
    match: MatchResult = cache.match_prefix(params)
    slots: torch.Tensor = match.device_indices
    return slots


def prefix_cache(scheduler: Scheduler) -> BasePrefixCache:
    """The tree of cached prefixes."""
    return scheduler.tree_cache


def request_pool(owner: Scheduler | ModelRunner | ScheduleBatch) -> ReqToTokenPool:
    """What gives requests their rows of the slot map: of a ``Scheduler``, a ``ModelRunner`` or a batch."""
    return owner.req_to_token_pool


def slot_allocator(runner: ModelRunner) -> BaseTokenToKVPoolAllocator:
    """What gives requests their KV slots."""
    return runner.token_to_kv_pool_allocator


def slot_map(owner: ModelRunner | ScheduleBatch) -> torch.Tensor:
    """``req_to_token``, ``[requests, context]`` int32, of a ``ModelRunner`` or a batch."""
    pool: ReqToTokenPool = request_pool(owner)
    slots: torch.Tensor = pool.req_to_token
    return slots


def slot_count(runner: ModelRunner) -> int:
    """How many KV slots there are, one page beyond those that requests get: padding writes there."""
    pool: KVCache = runner.token_to_kv_pool
    return int(pool.size + pool.page_size)


def kv_bytes(runner: ModelRunner) -> int:
    """Of the KV cache. Pools of keys and values say two sizes, pools of latents (MLA, DSA) one."""
    pool: MHATokenToKVPool | MLATokenToKVPool = runner.token_to_kv_pool
    sizes = pool.get_kv_size_bytes()
    return int(sum(sizes) if isinstance(sizes, tuple) else sizes)


def used_slots(runner: ModelRunner) -> tuple[int, int]:
    """How many KV slots requests and the cache have taken, and of how many."""
    allocator: BaseTokenToKVPoolAllocator = slot_allocator(runner)
    return allocator.size - allocator.available_size(), allocator.size
