"""Mixtures of experts: what SGLang's CPU engine lacks."""

from __future__ import annotations

from tessera_patches.seam import Guard, Hook, Phase, Seam

SEAMS = (
    Seam(
        target="sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="cpu_experts",
        handler="tessera_patches.cpu_experts:experts_of_this_rank",
        guard=Guard.PARAMETERS,
        why="Lets ranks without a GPU hold some of the experts each.",
        remove_when="SGLang's experts in torch take those of other ranks.",
        callers=("sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod.forward_cpu",),
    ),
)
