"""What the CPU engine serves with our additions: decided from SGLang's ``ServerArgs`` (``args``), without SGLang.

On another device every answer is no. The additions are in a checkout, and not in the wheel.
"""

from importlib.util import find_spec
from typing import Any

from tessera.installing import in_checkout

INSTALLED = find_spec("tessera_kernels.cpu") is not None
"""Whether they are here."""
MISSING = in_checkout("the CPU engine")
"""Why a server does not start without them, and what to do."""

BACKEND = "torch_native"
"""The attention backend of a machine without a GPU."""
ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")
"""The algorithms whose drafts it verifies."""


def enable() -> None:
    """Make SGLang's CPU engine usable in this process and its children.

    Raises:
        RuntimeError: it cannot be. The message says what to do.
    """
    if not INSTALLED:
        raise RuntimeError(MISSING)
    import tessera_kernels.cpu

    tessera_kernels.cpu.enable()


def calls_kernels(args: Any) -> bool:
    """Whether the model's code calls a Triton kernel that SGLang has no other version of.

    It has linear attention by the gated delta rule (Qwen3-Next), or experts that every token shares (Qwen2-MoE).
    """
    model = _model(args)
    if args.device != "cpu" or model is None:
        return False
    config = model.hf_text_config
    return hasattr(config, "linear_num_value_heads") or bool(getattr(config, "shared_expert_intermediate_size", 0))


def keeps_latents(args: Any) -> bool:
    """Whether its KV are latents (MLA: DeepSeek-V2, V3, R1, Kimi-K2), which ``torch_native`` attention misreads."""
    model = _model(args)
    return _attends(args) and model is not None and model.attention_arch.name == "MLA"


def has_windows(args: Any) -> bool:
    """Whether its sliding windows have a KV pool of their own (Mellum), which ``torch_native`` attention misreads."""
    model = _model(args)
    return _attends(args) and model is not None and bool(model.is_hybrid_swa)


def speculates(args: Any) -> bool:
    """Whether they ask for speculative decoding."""
    return bool(args.speculative_algorithm) and _attends(args)


def _model(args: Any) -> Any:
    return getattr(args, "model_config", None)  # None: SGLang's placeholder instead of a path


def _attends(args: Any) -> bool:
    return args.device == "cpu" and BACKEND in args.get_attention_backends()


def refused(args: Any) -> list[str]:
    """One sentence for each option that a server that `speculates` does not support."""
    lines = []
    if args.speculative_algorithm not in ALGORITHMS:
        lines.append(f"--speculative-algorithm {args.speculative_algorithm}: on the CPU engine {', '.join(ALGORITHMS)}")
    backends = {*args.get_attention_backends(), args.speculative_draft_attention_backend or BACKEND}
    if backends != {BACKEND}:
        others = ", ".join(sorted(backends - {BACKEND}))
        lines.append(f"--attention-backend {others}: speculative decoding on the CPU engine needs {BACKEND} throughout")
    if args.enable_multi_layer_eagle:
        lines.append("--enable-multi-layer-eagle is not supported on the CPU engine")
    if args.page_size > 1 and (args.speculative_eagle_topk or 1) > 1:
        lines.append(f"--page-size {args.page_size}: --speculative-eagle-topk above 1 on the CPU engine needs 1")
    return lines


def refused_model(sliding_window: int | None) -> str | None:
    """Why drafts for a model cannot be verified, or None. ``sliding_window`` is in tokens; -1 is none."""
    if sliding_window in (None, -1):
        return None
    return "--speculative-algorithm on the CPU engine does not support this model: it has sliding-window attention"
