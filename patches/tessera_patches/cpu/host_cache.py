"""The host part of a hierarchical KV cache on the CPU engine: SGLang copies to and from it by kernels for GPUs.

Scheduler process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.pool_host.base import HICACHE_HOST_MEMORY_RESERVE_BYTES

if TYPE_CHECKING:
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost


def allocate_unpinned(
    original: Callable[..., torch.Tensor], dims: Any, dtype: Any, device: Any, pin_memory: bool, *rest: Any, **more: Any
) -> torch.Tensor:
    """AROUND ``alloc_with_host_register``: memory that is not registered with CUDA, which is not here."""
    return original(dims, dtype, device, False, *rest, **more)


def without_reserve(original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    """AROUND ``host_memory_budget_bytes``: bytes that may be taken, without the 10 GiB that SGLang keeps free."""
    return original(*args, **kwargs) + int(HICACHE_HOST_MEMORY_RESERVE_BYTES)


def load_layer(
    host: MHATokenToKVPoolHost,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """REPLACEs ``MHATokenToKVPoolHost.load_to_device_per_layer``: one layer, from the host's part."""
    host.device_k_buffers[layer_id][device_indices] = host.k_data_refs[layer_id][host_indices]
    host.device_v_buffers[layer_id][device_indices] = host.v_data_refs[layer_id][host_indices]


def back_up_layers(
    host: MHATokenToKVPoolHost,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """REPLACEs ``MHATokenToKVPoolHost.backup_from_device_all_layer``: all layers, to the host's part."""
    for layer_id in range(host.layer_num):
        host.k_data_refs[layer_id][host_indices] = host.device_k_buffers[layer_id][device_indices]
        host.v_data_refs[layer_id][host_indices] = host.device_v_buffers[layer_id][device_indices]


def load_latents(
    host: MLATokenToKVPoolHost,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """REPLACEs ``MLATokenToKVPoolHost.load_to_device_per_layer``: the same for latents."""
    host.device_kv_buffers[layer_id][device_indices] = host.data_refs[layer_id][host_indices]


def back_up_latents(
    host: MLATokenToKVPoolHost,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """REPLACEs ``MLATokenToKVPoolHost.backup_from_device_all_layer``: the same for latents."""
    for layer_id in range(host.layer_num):
        host.data_refs[layer_id][host_indices] = host.device_kv_buffers[layer_id][device_indices]
