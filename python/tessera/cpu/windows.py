"""Sliding windows with a KV pool of their own (Mellum) on the CPU engine, whose attention misreads that pool."""

from typing import Any

from tessera.cpu.speculation import BACKEND


def wanted(args: Any) -> bool:
    """Whether ``args`` (SGLang's ``ServerArgs``) serve such a model on the CPU engine."""
    model = getattr(args, "model_config", None)  # None: SGLang's placeholder instead of a path
    on_cpu = args.device == "cpu" and BACKEND in args.get_attention_backends()
    return on_cpu and model is not None and bool(model.is_hybrid_swa)
