"""Everything that changes what a step costs: a cost profile holds for a server with the same facts only."""

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("sglang-tessera", "sglang", "torch", "triton", "sglang-kernel", "flashinfer-python")
_OPTIONS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "tp_size",
    "ep_size",
    "page_size",
    "attention_backend",
    "decode_attention_backend",
    "prefill_attention_backend",
    "speculative_attention_mode",
    "speculative_draft_attention_backend",
    "speculative_algorithm",
    "speculative_use_rejection_sampling",
    "speculative_draft_model_quantization",
    "moe_runner_backend",
    "speculative_moe_runner_backend",
    "flashinfer_mxfp4_moe_precision",
    "disable_shared_experts_fusion",
    "revision",
    "json_model_override_args",
    "torchao_config",
    "speculative_draft_model_revision",
    "speculative_token_map",
    "speculative_draft_window_size",
    "fp8_gemm_runner_backend",
    "fp4_gemm_runner_backend",
    "bf16_gemm_backend",
    "sampling_backend",
    "disable_overlap_schedule",
    "disable_flashinfer_autotune",
    "flashinfer_mla_disable_ragged",
    "enable_fused_qk_norm_rope",
    "enable_fused_moe_sum_all_reduce",
    "cpu_offload_gb",
    "offload_mode",
    "enable_return_hidden_states",
    "enable_torch_compile",
    "disable_custom_all_reduce",
    "load_format",
)


def facts(args: Any, steps: list[int], batch_sizes: list[int], tiers: list[int]) -> dict[str, Any]:
    """The facts of a server on a CUDA device, as JSON values.

    Args:
        args: SGLang's resolved options.
        steps: the numbers of drafted tokens to choose from.
        batch_sizes: of the captured graphs.
        tiers: sizes in tokens of the graphs for verifications in part.
    """
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda,
        "gpu": device.name,
        "multiprocessors": device.multi_processor_count,
        "memory": device.total_memory,
        "board": board(str(device.uuid)),
        "model": _model(args.model_path),
        "draft": _model(args.speculative_draft_model_path),
        "options": {name: _plain(getattr(args, name, None)) for name in _OPTIONS},
        "forwards": args.speculative_num_steps,
        "topk": args.speculative_eagle_topk,
        "steps": steps,
        "batch_sizes": batch_sizes,
        "tiers": tiers,
    }


def board(uuid: str) -> dict[str, Any]:
    """Driver, power limit in mW and greatest clock in MHz; empty where NVML says nothing, and the spot check must do.

    Args:
        uuid: of the device, as CUDA has it.
    """
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return {
            "driver": _plain(pynvml.nvmlSystemGetDriverVersion()),
            "power_limit": int(pynvml.nvmlDeviceGetPowerManagementLimit(handle)),
            "clock": int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        }
    except pynvml.NVMLError:
        return {}


def _model(path: str) -> dict[str, Any]:
    """A model by its configuration and the sizes of its files; a name that is no folder stands for itself."""
    folder = Path(path)
    if not folder.is_dir():
        return {"name": path}
    configuration = folder / "config.json"
    content = configuration.read_bytes() if configuration.is_file() else b""
    weights = {file.name: file.stat().st_size for file in sorted(folder.glob("*.safetensors"))}
    return {"name": path, "config": hashlib.sha256(content).hexdigest(), "weights": weights}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
