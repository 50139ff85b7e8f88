"""Adapters (LoRA) of the tiny models, made when a test runs, and the reference of a model with one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY

RANK = 4
ATTENTION = ("q_proj", "k_proj", "v_proj")
"""What an adapter changes; SGLang wants all three of them."""
EXPERTS = ("gate_proj", "up_proj", "down_proj")
"""The same of every expert."""
_NAME = "base_model.model.{}.lora_{}.weight"
_FILE = "adapter_model.safetensors"
_MODEL = "model.safetensors"


def make(folder: Path, seed: int, model: Path = TINY, parts: tuple[str, ...] = ATTENTION) -> Path:
    """Write a random adapter of these layers, in PEFT's form, and return its folder."""
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in load_file(model / _MODEL).items():
        layer = name.removesuffix(".weight")
        if layer.endswith(parts):
            to, of = weight.shape
            weights[_NAME.format(layer, "A")] = torch.randn(RANK, of, generator=random) / 16
            weights[_NAME.format(layer, "B")] = torch.randn(to, RANK, generator=random) / 16
    save_file(weights, folder / _FILE)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(parts), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merged(adapter: Path, folder: Path, model: Path = TINY) -> HuggingFace:
    """The reference of a model with an adapter in its weights, which are written to ``folder``."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    lora, weights = load_file(adapter / _FILE), load_file(model / _MODEL)
    for name, weight in weights.items():
        a, b = (_NAME.format(name.removesuffix(".weight"), which) for which in "AB")
        if a in lora:
            weights[name] = weight.float() + lora[b] @ lora[a]
    save_file(weights, folder / _MODEL, metadata={"format": "pt"})
    return HuggingFace(folder)
