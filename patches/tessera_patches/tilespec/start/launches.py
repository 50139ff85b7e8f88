"""SGLang's own Triton kernels between the graphs of a step, launched as fast as ours."""

from __future__ import annotations

from importlib import import_module

import torch

from tessera_patches.core.changes import launch_directly
from tessera_patches.core.seam import Hook
from tessera_patches.tilespec.start.seams import SEAMS

KERNELS = tuple(seam.target for seam in SEAMS if seam.hook is Hook.KERNEL)
"""What a step launches besides its graphs, by dotted path."""


def hasten_sglang(device: str) -> None:
    """Have these take the short way in this process; only on a GPU there is one."""
    if torch.device(device).type != "cuda":
        return
    for kernel in KERNELS:
        module, name = kernel.rsplit(".", 1)
        launch_directly(getattr(import_module(module), name))
