"""The start: what steps cost, measured before anything is served."""

from __future__ import annotations

from tessera_patches.core.places import SCHEDULER
from tessera_patches.core.seam import Guard, Hook, Phase, Seam

SEAMS = (
    Seam(
        target=f"{SCHEDULER}.init_model_worker",
        hook=Hook.AFTER,
        phase=Phase.SCHEDULER,
        feature="tilespec",
        handler="tessera_patches.tilespec.entry:profile",
        guard=Guard.PARAMETERS,
        why="Measures what steps cost when every graph exists and before anything is served.",
        remove_when="SGLang calls plugins when a scheduler is ready.",
        callers=(f"{SCHEDULER}.__init__",),
        relied=(
            "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
            "sglang.srt.mem_cache.allocation.alloc_for_spec_decode",
        ),
    ),
)
