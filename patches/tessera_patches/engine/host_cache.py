"""The part of SGLang's hierarchical cache that lies in the host's memory."""

from __future__ import annotations

from importlib.util import find_spec
from inspect import getmro
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.pool_host.base import HostKVCache

from tessera_patches.engine.cache import prefix_cache

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.l2_transfer import L2TransferEngine
    from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

_COPIES = (
    *("backup_from_device_all_layer_physical", "load_to_device_per_layer_physical"),
    "prepare_transfer_indices",  # what reaches them are indices of tokens
)

if find_spec("sglang.srt.mem_cache.l2_transfer"):  # rows do not go with the hierarchical cache of earlier versions

    def host_pool(scheduler: Scheduler) -> HostKVCache:
        """What keeps keys and values of tokens, those of layers that attend to all; there are others beside it."""
        controller: HybridCacheController = _controller(scheduler)
        pools: HostPoolGroup = controller.mem_pool_host
        entry: PoolEntry = pools.anchor_entry
        pool: HostKVCache = entry.host_pool
        return pool

    def host_tokens(pool: HostKVCache) -> int:
        """How many tokens it holds."""
        tokens: int = pool.logical_size
        return tokens

    def loads_wait(scheduler: Scheduler) -> bool:
        """Whether prefixes that already have slots wait for their keys and values to be copied back."""
        controller: HybridCacheController = _controller(scheduler)
        return bool(controller.load_queue)

    def loading_stream(scheduler: Scheduler) -> Any:
        """The stream on which they are copied back."""
        controller: HybridCacheController = _controller(scheduler)
        transfers: L2TransferEngine = controller.l2_transfer_engine
        return transfers.host_to_device_stream

    def _controller(scheduler: Scheduler) -> HybridCacheController:
        cache: UnifiedRadixCache = prefix_cache(scheduler)
        controller: HybridCacheController = cache.cache_controller
        return controller


def is_copied_as_others(pool: HostKVCache) -> bool:
    """Whether its copies pass the functions that all kinds of host pools inherit, which are hooked."""
    own = [kind for kind in getmro(type(pool)) if kind is not HostKVCache]
    return not any(name in vars(kind) for kind in own for name in _COPIES)
