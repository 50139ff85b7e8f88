"""Copies of the tiny model with other weights."""

from __future__ import annotations

from pathlib import Path

from tessera_testing.tiny import TINY


def with_other_weights(folder: Path, seed: int = 0) -> Path:
    """Fill a folder with the tiny model, each weight of it changed by a tenth at random. Returns the folder."""
    import torch
    from safetensors.torch import load_file, save_file

    for path in TINY.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: weight * (1 + 0.1 * torch.randn(weight.shape, generator=generator)).to(weight.dtype)
        for name, weight in load_file(TINY / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
