"""Latent KV on the CPU engine: when our attention to it is on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tessera.cpu import keeps_latents


def args(architecture: str | None = "MLA", device: str = "cpu", backend: str = "torch_native") -> SimpleNamespace:
    """SGLang's options as far as we look at them."""
    model: Any = architecture and SimpleNamespace(attention_arch=SimpleNamespace(name=architecture))
    return SimpleNamespace(device=device, model_config=model, get_attention_backends=lambda: (backend, backend))


def test_off_without_latents_without_cpu_and_with_another_backend() -> None:
    """Then nothing of ours is installed."""
    assert keeps_latents(args())
    assert not keeps_latents(args("MHA"))
    assert not keeps_latents(args(None))
    assert not keeps_latents(args(device="cuda"))
    assert not keeps_latents(args(backend="intel_amx"))
