"""SGLang's prefix cache and its map of slots."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from tessera_patches.engine.requests import cache_key, prompt_ids


def radix_key(req: Any) -> RadixKey:
    """The key under which a request's prompt is in the cache."""
    return RadixKey(token_ids=prompt_ids(req), extra_key=cache_key(req))


def cached_slots(scheduler: Any, req: Any) -> torch.Tensor:
    """The KV slots of the longest prefix of a request's prompt that is cached, ``[n]`` int64."""
    params = MatchPrefixParams(key=radix_key(req), req=req)
    slots: torch.Tensor = prefix_cache(scheduler).match_prefix(params).device_indices
    return slots


def prefix_cache(scheduler: Any) -> Any:
    """The tree of cached prefixes."""
    return scheduler.tree_cache


def request_pool(owner: Any) -> Any:
    """What gives requests their rows of the slot map: of a ``Scheduler``, a ``ModelRunner`` or a batch."""
    return owner.req_to_token_pool


def slot_allocator(runner: Any) -> Any:
    """What gives requests their KV slots."""
    return runner.token_to_kv_pool_allocator


def slot_map(owner: Any) -> torch.Tensor:
    """``req_to_token``, ``[requests, context]`` int32, of a ``ModelRunner`` or a batch."""
    slots: torch.Tensor = request_pool(owner).req_to_token
    return slots


def slot_count(runner: Any) -> int:
    """How many KV slots there are, one page beyond those that requests get: padding writes there."""
    pool = runner.token_to_kv_pool
    return int(pool.size + pool.page_size)


def kv_bytes(runner: Any) -> int:
    """Of the KV cache. Pools of keys and values say two sizes, pools of latents (MLA, DSA) one."""
    sizes = runner.token_to_kv_pool.get_kv_size_bytes()
    return int(sum(sizes) if isinstance(sizes, tuple) else sizes)


def used_slots(runner: Any) -> tuple[int, int]:
    """How many KV slots requests and the cache have taken, and of how many."""
    allocator = slot_allocator(runner)
    return allocator.size - allocator.available_size(), allocator.size
