"""Sliding windows with a KV pool of their own on the CPU engine. Scheduler process."""

from collections.abc import Callable
from typing import Any

import torch

from tessera_patches.engine import cache


def attend(
    original: Callable[..., torch.Tensor], backend: Any, q: Any, k: Any, v: Any, layer: Any, *rest: Any, **kwargs: Any
) -> torch.Tensor:
    """AROUND ``TorchNativeAttnBackend.forward_extend`` and ``forward_decode``.

    SGLang writes the keys of a window's layer to the slots of its own pool, and reads them from those of the other.
    """
    with cache.with_window_slots(backend, layer.layer_id):
        return original(backend, q, k, v, layer, *rest, **kwargs)
