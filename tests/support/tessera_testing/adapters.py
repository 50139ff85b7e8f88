"""Adapters (LoRA) of the tiny model, made when a test runs, and the reference of the model with one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY

LAYERS, H, RANK = 4, 256, 4
WIDTHS = {"q_proj": 256, "k_proj": 128, "v_proj": 128}
"""What an adapter changes, and how wide each comes out; SGLang wants all three of them."""
_NAME = "base_model.model.model.layers.{}.self_attn.{}.lora_{}.weight"
_FILE = "adapter_model.safetensors"


def make(folder: Path, seed: int) -> Path:
    """Write a random adapter of the attention, in PEFT's form, and return its folder."""
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for i in range(LAYERS):
        for name, width in WIDTHS.items():
            weights[_NAME.format(i, name, "A")] = torch.randn(RANK, H, generator=random) / 16
            weights[_NAME.format(i, name, "B")] = torch.randn(width, RANK, generator=random) / 16
    save_file(weights, folder / _FILE)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(WIDTHS), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merged(adapter: Path, folder: Path) -> HuggingFace:
    """The reference of the tiny model with an adapter in its weights, which are written to ``folder``."""
    shutil.copytree(TINY, folder, dirs_exist_ok=True)
    lora, weights = load_file(adapter / _FILE), load_file(TINY / "model.safetensors")
    for i in range(LAYERS):
        for name in WIDTHS:
            change = lora[_NAME.format(i, name, "B")] @ lora[_NAME.format(i, name, "A")]
            own = f"model.layers.{i}.self_attn.{name}.weight"
            weights[own] = weights[own].float() + change
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return HuggingFace(folder)
