"""Models on the CPU engine whose code calls a Triton kernel that SGLang has no other version of."""

from typing import Any


def wanted(args: Any) -> bool:
    """Whether ``args`` (SGLang's ``ServerArgs``) serve such a model on the CPU engine.

    It has linear attention by the gated delta rule (Qwen3-Next), or experts that every token shares (Qwen2-MoE).
    """
    model = getattr(args, "model_config", None)  # None: SGLang's placeholder instead of a path
    if args.device != "cpu" or model is None:
        return False
    config = model.hf_text_config
    return hasattr(config, "linear_num_value_heads") or bool(getattr(config, "shared_expert_intermediate_size", 0))
