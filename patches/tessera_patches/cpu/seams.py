"""SGLang's CPU engine: what it lacks beside the CUDA wheel of ``sgl_kernel``, and models that it computes wrongly."""

from tessera_patches.core.places import DRAFT_BACKENDS, UPDATER
from tessera_patches.core.seam import Guard, Hook, Phase, Runs, Seam

_LINEAR = "sglang.srt.layers.attention.linear"
_SPECULATIVE = "sgl_kernel.speculative"
_QWEN = "sglang.srt.models.qwen3_5"


def _draft_backend(method: str, handler: str) -> Seam:
    return Seam(
        target=f"{DRAFT_BACKENDS}.{method}",
        hook=Hook.REPLACE,
        feature="cpu_speculation",
        handler=f"tessera_patches.cpu.speculation:{handler}",
        why="Gives draft models attention on a machine without a GPU.",
        remove_when="SGLang's torch_native attention supports speculative decoding.",
        callers=("sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.init_attention_backend",),
        runs=Runs.START,
        runs_with="draft_models",
    )


def _window(method: str, runs: Runs) -> Seam:
    return Seam(
        target=f"sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.{method}",
        hook=Hook.AROUND,
        feature="cpu_windows",
        handler="tessera_patches.cpu.windows:attend",
        guard=Guard.PARAMETERS,
        why="Reads the KV of sliding windows from their own pool; SGLang reads it at the other pool's slots.",
        remove_when="SGLang's torch_native attention translates the slots that it reads.",
        callers=("sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward",),
        runs=runs,
    )


def _host_cache(kind: str, method: str, handler: str) -> Seam:
    return Seam(
        target=f"sglang.srt.mem_cache.pool_host.{kind.lower()}.{kind}TokenToKVPoolHost.{method}",
        hook=Hook.REPLACE,
        feature="cpu_host_cache",
        handler=f"tessera_patches.cpu.host_cache:{handler}",
        why="Copies keys and values between the two parts of a hierarchical cache without a GPU.",
        remove_when="SGLang's host pools copy without a GPU.",
        callers=(f"sglang.srt.mem_cache.pool_host.base.HostKVCache.{method}_physical",),
        called_by="A prefix that goes to the host's memory, or comes back.",
    )


def _kernel(function: str, caller: str) -> Seam:
    return Seam(
        target=f"sglang.kernels.ops.{function}",
        hook=Hook.REPLACE,
        feature="cpu_kernels",
        handler=f"tessera_patches.cpu.kernels:{function.rpartition('.')[2]}",
        guard=Guard.PARAMETERS,
        why="Computes with torch what SGLang computes with a Triton kernel.",
        remove_when="SGLang has a version of it for CPUs.",
        callers=(caller,),
        called_by="Models that have it.",
    )


def _operator(
    operator: str, function: str = "", module: str = _SPECULATIVE, moved: str = "", moved_why: str = ""
) -> Seam:
    """One operator, as ``module:name`` in `tessera_kernels.cpu`."""
    name = operator.partition(":")[2]
    return Seam(
        target=f"{module}.{function or name}",
        hook=Hook.OPERATOR,
        phase=Phase.CPU,
        feature="",
        handler=f"tessera_kernels.cpu.{operator}",
        why=f"The CUDA wheel of sgl_kernel calls {name} on a CPU, and has none.",
        remove_when="The CUDA wheel of sgl_kernel has its operators for CPUs.",
        moved=moved,
        moved_why=moved_why,
        called_by="Speculative decoding." if module == _SPECULATIVE else "Models or caches that have it.",
    )


def _variable(name: str, reader: str, why: str, remove_when: str) -> Seam:
    return Seam(
        target=reader,
        hook=Hook.VALUE,
        phase=Phase.CPU,
        feature="",
        handler="tessera_kernels.cpu:enable",
        why=f"{name}: {why}",
        remove_when=remove_when,
        called_by="A machine without a GPU.",
    )


SEAMS = (
    _variable(
        "SGLANG_USE_CPU_ENGINE",
        "sglang.srt.utils.common.is_cpu",
        "SGLang runs its code for CPUs only if this is set.",
        "SGLang does so where there is no GPU.",
    ),
    _variable(
        "SGLANG_NCCL_SO_PATH",
        "sglang.srt.distributed.device_communicators.pynccl_wrapper.find_nccl_library",
        "Ranks on CPUs talk through gloo, but where NCCL loads SGLang wants GPUs for it.",
        "SGLang loads NCCL for GPUs alone.",
    ),
    _variable(
        "SGLANG_OPT_USE_GUMBEL_SAMPLE",
        "sglang.srt.speculative.spec_utils.fast_sample",
        "What samples a prompt's first draft uses a Triton kernel where this is not unset.",
        "SGLang does so where there is a GPU alone.",
    ),
    _variable(
        "torch.get_device_module",
        f"{UPDATER}.release_memory_occupation",
        "Without a device SGLang waits for the CPU; torch 2.14 for CUDA names the GPU that is not there.",
        "SGLang names the device that it waits for.",
    ),
    _operator("kv_cache:copy_all_layer_kv_cache_cpu", module="sgl_kernel.kvcacheio"),
    _operator("kv_cache:assign_req_to_token_pool_cpu"),
    _operator("kv_cache:assign_extend_cache_locs_cpu"),
    _operator("kv_cache:assign_draft_cache_locs_contiguous_cpu"),
    _operator("draft_tree:build_tree_kernel_efficient_cpu"),
    _operator("draft_tree:reconstruct_indices_from_tree_mask_cpu", "reconstruct_indices_from_tree_mask"),
    _operator("acceptance:verify_tree_greedy_cpu"),
    _operator("acceptance:fill_bonus_tokens_cpu"),
    _operator("acceptance:fill_accept_out_cache_loc_cpu"),
    _operator("delta_rule:fused_qkvzba_split_reshape_cat_contiguous_cpu", "Qwen3_5GatedDeltaNet.forward", _QWEN),
    _operator("gated_attention:fused_qk_gemma_rmsnorm_cpu", "Qwen3_5AttentionDecoderLayer._apply_qk_norm", _QWEN),
    _operator(
        "gated_attention:fused_qk_gemma_rmsnorm_with_gate_cpu",
        "Qwen3_5AttentionDecoderLayer.forward_prepare_fused_gate",
        _QWEN,
    ),
    _operator("gated_attention:fused_sigmoid_mul_cpu", "Qwen3_5AttentionDecoderLayer.self_attention", _QWEN),
    _operator("delta_rule:causal_conv1d_fwd_cpu", "causal_conv1d_fn_cpu", "sgl_kernel.mamba"),
    _operator("delta_rule:causal_conv1d_update_cpu", module="sgl_kernel.mamba"),
    _operator("delta_rule:chunk_gated_delta_rule_cpu", module="sgl_kernel.mamba"),
    _operator(
        "delta_rule:fused_gdn_gating_cpu",
        "GDNAttnBackend._prefill_gates",
        f"{_LINEAR}.gdn_backend",
        moved=f"{_LINEAR}.gdn_backend.GDNAttnBackend.forward_extend; <0.5.22",
        moved_why="Earlier the prefill computes its gates itself.",
    ),
    _operator(
        "delta_rule:fused_sigmoid_gating_delta_rule_update_cpu",
        "TritonGDNKernel.decode",
        f"{_LINEAR}.kernels.gdn_triton",
    ),
    Seam(
        target="sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        hook=Hook.AROUND,
        feature="cpu_experts",
        handler="tessera_patches.cpu.experts:local_experts",
        guard=Guard.PARAMETERS,
        why="Lets ranks without a GPU hold some of the experts each.",
        remove_when="SGLang's experts in torch take those of other ranks.",
        runs=Runs.REQUEST,
        callers=("sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod.forward_cpu",),
    ),
    Seam(
        target="sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA.dispatch_attn_forward_method",
        hook=Hook.AROUND,
        feature="cpu_latents",
        handler="tessera_patches.cpu.latents:attend_to_latents",
        guard=Guard.PARAMETERS,
        why="Has torch_native attend to latents (MLA) in prefills too; SGLang has it read them as if they were keys.",
        remove_when="SGLang's registry of attention handlers has one for torch_native.",
        runs=Runs.REQUEST,
        callers=("sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA.forward_prepare",),
        relied=(
            "sglang.srt.models.deepseek_common.attention_backend_handler.handle_attention_triton",
            "sglang.srt.models.deepseek_common.attention_backend_handler._dispatch_mla_subtype",
        ),
    ),
    Seam(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend",
        hook=Hook.REPLACE,
        feature="cpu_speculation",
        handler="tessera_patches.cpu.speculation:TorchNativeAttnBackend",
        why="Verifies drafted tokens on a machine without a GPU: chains and trees, whole or cut to size.",
        remove_when="SGLang's torch_native attention supports speculative decoding.",
        runs=Runs.START,
        callers=("sglang.srt.layers.attention.attention_registry.create_torch_native_backend",),
    ),
    _kernel(
        "attention.fla.fused_norm_gate.rms_norm_gated",
        "sglang.kernels.ops.attention.fla.fused_norm_gate.FusedRMSNormGated.forward",
    ),
    _kernel(
        "attention.fla.layernorm_gated.layernorm_fn", "sglang.kernels.ops.attention.fla.layernorm_gated.RMSNorm.forward"
    ),
    _kernel(
        "elementwise.elementwise.fused_gate_sigmoid_mul_add",
        "sglang.srt.models.qwen2_moe.Qwen2MoeSparseMoeBlock.forward",
    ),
    _window("forward_extend", Runs.REQUEST),
    _window("forward_decode", Runs.DECODE),
    Seam(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.req_to_token_pool",
        hook=Hook.VALUE,
        feature="cpu_windows",
        handler="tessera_patches.engine.cache:with_window_slots",
        guard=Guard.FIELD,
        why="While the attention of a window's layer runs: it reads the slots of the pool that windows have.",
        remove_when="SGLang's torch_native attention translates the slots that it reads.",
        runs=Runs.REQUEST,
    ),
    Seam(
        target="sglang.srt.mem_cache.pool_host.common.alloc_with_host_register",
        hook=Hook.AROUND,
        feature="cpu_host_cache",
        handler="tessera_patches.cpu.host_cache:allocate_unpinned",
        guard=Guard.PARAMETERS,
        why="Keeps the host's part of a hierarchical cache in memory that is not registered with CUDA.",
        remove_when="SGLang's registry ALLOC_MEMORY_FUNCS has an entry for the CPU.",
        runs=Runs.START,
        relied=("sglang.srt.mem_cache.pool_host.common.ALLOC_MEMORY_FUNCS",),  # which hands it out
    ),
    Seam(
        target="sglang.srt.mem_cache.pool_host.base.host_memory_budget_bytes",
        hook=Hook.AROUND,
        feature="cpu_host_cache",
        handler="tessera_patches.cpu.host_cache:without_reserve",
        why="Starts where 10 GiB are not free, more than many machines without a GPU have.",
        remove_when="SGLang has an option for what stays free.",
        runs=Runs.START,
        callers=("sglang.srt.mem_cache.pool_host.base.HostKVCache._allocate_host_buffer",),
    ),
    _host_cache("MHA", "load_to_device_per_layer", "load_layer"),
    _host_cache("MHA", "backup_from_device_all_layer", "back_up_layers"),
    _host_cache("MLA", "load_to_device_per_layer", "load_latents"),
    _host_cache("MLA", "backup_from_device_all_layer", "back_up_latents"),
    _draft_backend("create_decode_backend", "draft_decode_backend"),
    _draft_backend("create_draft_extend_backend", "draft_extend_backend"),
)
