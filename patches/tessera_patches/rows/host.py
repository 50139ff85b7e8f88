"""Prefixes in the host's memory (``--enable-hierarchical-cache``): rows go with their KV. Scheduler process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.managers import io_struct

from tessera import config
from tessera.rows.host import HostRows
from tessera.rows.store import row_bytes
from tessera_patches.core.apply import start_error
from tessera_patches.engine import host_cache
from tessera_patches.rows import memory, runtime

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.pool_host.base import HostKVCache

logger = logging.getLogger(__name__)


def allocate(scheduler: Any) -> None:
    """Make room for a row beside each token of the host pool; ends the process where there is none."""
    store, pool = runtime.rows, host_cache.host_pool(scheduler) if config.active.host_cache else None
    if store is None or pool is None:
        return
    if not host_cache.is_copied_as_others(pool):
        raise start_error(
            f"--enable-hierarchical-cache with {type(pool).__name__} is not yet tested with hidden states"
        )
    tokens = host_cache.host_tokens(pool)
    size = row_bytes(store.rows.shape[1], store.rows.dtype)
    memory.refuse_beyond_memory(tokens, size, "--hicache-ratio or --hicache-size")
    runtime.host_rows, runtime.host_pool = HostRows(tokens, store), pool
    logger.info("tessera: rows of %d tokens in the host's memory take %.1f MiB", tokens, tokens * size / 2**20)


def back_up(
    result: None,
    pool: HostKVCache,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """AFTER ``HostKVCache.backup_from_device_all_layer_physical``, on the stream of that copy."""
    if runtime.host_rows is not None and pool is runtime.host_pool:
        runtime.host_rows.back_up(host_indices, device_indices)


def load(
    pool: HostKVCache,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """BEFORE ``HostKVCache.load_to_device_per_layer_physical``, on the stream of that copy."""
    if runtime.host_rows is not None and pool is runtime.host_pool and layer_id == 0 and not is_draft:
        runtime.host_rows.load(host_indices, device_indices)


def refuse_storage(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """AROUND ``Scheduler.attach_hicache_storage_wrapped``."""
    message = "tessera: KV that comes back from storage comes without its hidden states"
    return io_struct.AttachHiCacheStorageReqOutput(success=False, message=message)
