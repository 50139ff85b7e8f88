"""Models that SGLang's CPU engine does not serve, or computes wrongly: experts over ranks, and latent KV (MLA)."""

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
    Seam(
        target="sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA.dispatch_attn_forward_method",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="cpu_latents",
        handler="tessera_patches.cpu_latents:latents_attended",
        guard=Guard.PARAMETERS,
        why="Has torch_native attend to latents (MLA) in prefills too; SGLang has it read them as if they were keys.",
        remove_when="SGLang's registry of attention handlers has one for torch_native.",
        callers=("sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA.forward_prepare",),
        relied=(
            "sglang.srt.models.deepseek_common.attention_backend_handler.handle_attention_triton",
            "sglang.srt.models.deepseek_common.attention_backend_handler._dispatch_mla_subtype",
        ),
    ),
)
