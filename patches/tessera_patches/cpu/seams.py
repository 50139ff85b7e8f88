"""Models that SGLang's CPU engine does not serve, or computes wrongly: experts over ranks, and latent KV (MLA)."""

from __future__ import annotations

from tessera_patches.core.places import DRAFT_BACKENDS
from tessera_patches.core.seam import Guard, Hook, Phase, Seam


def _draft_backend(method: str, handler: str) -> Seam:
    return Seam(
        target=f"{DRAFT_BACKENDS}.{method}",
        hook=Hook.REPLACE,
        phase=Phase.SCHEDULER,
        feature="cpu_speculation",
        handler=f"tessera_patches.cpu.speculation:{handler}",
        guard=Guard.BODY,
        why="Gives draft models attention on a machine without a GPU.",
        remove_when="SGLang's torch_native attention supports speculative decoding.",
        callers=("sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.init_attention_backend",),
    )


SEAMS = (
    Seam(
        target="sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        hook=Hook.AROUND,
        phase=Phase.SCHEDULER,
        feature="cpu_experts",
        handler="tessera_patches.cpu.experts:experts_of_this_rank",
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
        handler="tessera_patches.cpu.latents:latents_attended",
        guard=Guard.PARAMETERS,
        why="Has torch_native attend to latents (MLA) in prefills too; SGLang has it read them as if they were keys.",
        remove_when="SGLang's registry of attention handlers has one for torch_native.",
        callers=("sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA.forward_prepare",),
        relied=(
            "sglang.srt.models.deepseek_common.attention_backend_handler.handle_attention_triton",
            "sglang.srt.models.deepseek_common.attention_backend_handler._dispatch_mla_subtype",
        ),
    ),
    Seam(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend",
        hook=Hook.REPLACE,
        phase=Phase.SCHEDULER,
        feature="cpu_speculation",
        handler="tessera_patches.cpu.speculation:TorchNativeAttnBackend",
        guard=Guard.BODY,
        why="Verifies drafted tokens on a machine without a GPU: chains and trees, whole or cut to size.",
        remove_when="SGLang's torch_native attention supports speculative decoding.",
    ),
    _draft_backend("create_decode_backend", "draft_decode_backend"),
    _draft_backend("create_draft_extend_backend", "draft_extend_backend"),
)
