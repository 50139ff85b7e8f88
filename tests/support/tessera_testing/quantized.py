"""The tiny model with quantized weights, and references that have the same numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY

GROUP = 64
"""Rows of a matrix that share a scale and a zero."""
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""AWQ's order: where in a word of eight numbers each of eight columns lies."""
LARGEST_FP8 = 448.0


def write_awq(folder: Path) -> tuple[Path, Path]:
    """Write an AWQ checkpoint of 4 bits and its dequantized weights.

    Returns:
        The folder that SGLang serves and the folder of the reference.
    """
    served, reference = (shutil.copytree(TINY, folder / name) for name in ("awq", "reference"))
    packed: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, weight in load_file(TINY / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            packed[name] = plain[name] = weight.half()
            continue
        grouped = weight.float().T.reshape(-1, GROUP, weight.shape[0])  # groups, rows of a group, columns
        low, high = grouped.amin(1).clamp(max=0), grouped.amax(1).clamp(min=0)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(0, 15)
        whole = (grouped / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15)
        plain[name] = ((whole - zeros[:, None]) * scales.float()[:, None]).flatten(0, 1).T.contiguous()
        stem = name.removesuffix("weight")
        packed |= {f"{stem}qweight": _pack(whole.flatten(0, 1)), f"{stem}qzeros": _pack(zeros), f"{stem}scales": scales}
    save_file(packed, served / "model.safetensors", {"format": "pt"})
    save_file(plain, reference / "model.safetensors", {"format": "pt"})
    how = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    config = json.loads((TINY / "config.json").read_text())
    (served / "config.json").write_text(json.dumps({**config, "quantization_config": how}))
    return served, reference


def _pack(numbers: Tensor) -> Tensor:
    """Columns of 4-bit numbers ``[n, 8 m]`` as int32 ``[n, m]``."""
    words = numbers.long().reshape(numbers.shape[0], -1, 8) << (4 * torch.tensor(PLACES))
    return words.sum(-1).to(torch.uint32).view(torch.int32)


def fp8_reference() -> HuggingFace:
    """Weights scaled by output, inputs of each matrix by token, both rounded to e4m3; sums in float32."""
    hf = HuggingFace(TINY)
    for module in hf._model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = rounded(module.weight.data)
            module.register_forward_pre_hook(_round_inputs)
    return hf


def _round_inputs(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (rounded(inputs[0]), *inputs[1:])


def rounded(numbers: Tensor) -> Tensor:
    """To e4m3, with a scale for each row."""
    scale = numbers.abs().amax(-1, keepdim=True).clamp(min=1e-10) / LARGEST_FP8
    return (numbers / scale).to(torch.float8_e4m3fn).float() * scale
