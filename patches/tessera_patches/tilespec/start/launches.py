"""Cached launches of SGLang's own Triton kernels between the graphs of a step."""

from importlib import import_module

import torch

from tessera_patches.core.changes import launch_directly
from tessera_patches.core.seam import Hook
from tessera_patches.inventory import SEAMS

KERNELS = tuple(seam.target for seam in SEAMS if seam.hook is Hook.KERNEL)
"""SGLang's Triton kernels that a step launches outside of graphs, by dotted path."""


def cache_sglang_launches(device: str) -> None:
    """Cache the launches of `KERNELS` in this process; nothing on a device that is not CUDA."""
    if torch.device(device).type != "cuda":
        return
    for kernel in KERNELS:
        module, name = kernel.rsplit(".", 1)
        launch_directly(getattr(import_module(module), name))
