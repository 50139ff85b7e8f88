"""Latent KV on the CPU engine: when our attention to it is on."""

from __future__ import annotations

from typing import Any

from tessera.cpu import keeps_latents
from tessera.server_options import ModelFacts
from tessera_testing.server_options import server_options


def args(*, latents: bool | None = True, device: str = "cpu", backend: str = "torch_native") -> Any:
    """SGLang's options as far as we look at them."""
    model = None if latents is None else ModelFacts(keeps_latents=latents)
    return server_options(device=device, model=model, attention_backends=(backend, backend))


def test_off_without_latents_without_cpu_and_with_another_backend() -> None:
    """Then nothing of ours is installed."""
    assert keeps_latents(args())
    assert not keeps_latents(args(latents=False))
    assert not keeps_latents(args(latents=None))
    assert not keeps_latents(args(device="cuda"))
    assert not keeps_latents(args(backend="intel_amx"))
