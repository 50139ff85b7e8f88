"""Sliding windows with a KV pool of their own on the CPU engine. Scheduler process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tessera_patches.core.changes import TemporaryFields
from tessera_patches.engine import cache


class _WindowSlots:
    """The slot map ``[requests, context]``, read as slots of the pool that windows have."""

    def __init__(self, slots: torch.Tensor, windows: torch.Tensor) -> None:
        self._slots, self._windows = slots, windows

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self._windows[self._slots[place]]


def attend(
    original: Callable[..., torch.Tensor], backend: Any, q: Any, k: Any, v: Any, layer: Any, *rest: Any, **kwargs: Any
) -> Any:
    """AROUND ``TorchNativeAttnBackend.forward_extend`` and ``forward_decode``.

    SGLang writes the keys of a window's layer to the slots of its own pool, and reads them from those of the other.
    """
    windows = cache.window_slots(backend, layer.layer_id)
    if windows is None:
        return original(backend, q, k, v, layer, *rest, **kwargs)
    slots = SimpleNamespace(req_to_token=_WindowSlots(cache.slot_map(backend), windows))
    with TemporaryFields(backend, req_to_token_pool=slots):
        return original(backend, q, k, v, layer, *rest, **kwargs)
