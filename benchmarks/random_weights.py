"""Random weights of a model's real scale, as a checkpoint that SGLang loads.

SGLang's own dummy weights are between -0.001 and 0.001, those of the norms too, so every state is next to nothing: all
tokens wake the same experts, and the rows of two runners have the same bits whatever these do. Here each matrix keeps
the length of what it is given, and a router prefers some experts to others, as a trained one does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

ROUTER = 2.0
"""Standard deviation of a router's logits."""
BLOCK = 128
"""FP8 weights have a scale for each block of 128 x 128."""
LARGEST_FP8 = 448.0
NOT_QUANTIZED = ("mlp.gate.", "lm_head.", "embed_tokens.", "norm.")
"""Parts of the names of weights that stay in bfloat16."""

Sizes = dict[str, tuple[int, ...]]


def write(folder: Path, config: Mapping[str, Any], device: str, seed: int = 0) -> None:
    """Write ``model-N.safetensors``, one for each layer, and an index; bfloat16, or FP8 by the configuration.

    Args:
        folder: has the configuration.
        config: of a Llama or Qwen3-MoE model.
        device: where the numbers are drawn.
        seed: of the numbers.
    """
    generator = torch.Generator(device).manual_seed(seed)
    index: dict[str, str] = {}
    shards = list(shard_sizes(config))
    for number, sizes in enumerate(tqdm(shards, desc=str(folder), unit="layer")):
        tensors: dict[str, Tensor] = {}
        for name, size in sizes.items():
            tensors |= _stored(name, _drawn(name, size, generator), fp8="quantization_config" in config)
        file = f"model-{number:05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, file)
    text = json.dumps({"metadata": {}, "weight_map": index}, indent=2)
    (folder / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")


def shard_sizes(config: Mapping[str, Any]) -> Iterator[Sizes]:
    """Names and sizes of the tensors: first what is outside of the layers, then layer by layer."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    outside: Sizes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    yield outside | {"lm_head.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        sizes = {**_attention(config), **_mlp(config)}
        yield {f"model.layers.{layer}.{name}.weight": size for name, size in sizes.items()}


def _attention(config: Mapping[str, Any]) -> Sizes:
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    sizes: Sizes = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    sizes |= {"self_attn.q_proj": (queries, hidden), "self_attn.o_proj": (hidden, queries)}
    sizes |= {f"self_attn.{name}_proj": (keys, hidden) for name in ("k", "v")}
    norms: Sizes = {f"self_attn.{name}_norm": (dim,) for name in ("q", "k")}
    return sizes | norms if config["model_type"] == "qwen3_moe" else sizes


def _mlp(config: Mapping[str, Any]) -> Sizes:
    hidden = config["hidden_size"]

    def gated(prefix: str, width: int) -> Sizes:
        up: Sizes = {f"{prefix}.{name}_proj": (width, hidden) for name in ("gate", "up")}
        return up | {f"{prefix}.down_proj": (hidden, width)}

    if "num_experts" not in config:
        return gated("mlp", config["intermediate_size"])
    sizes: Sizes = {"mlp.gate": (config["num_experts"], hidden)}
    for expert in range(config["num_experts"]):
        sizes |= gated(f"mlp.experts.{expert}", config["moe_intermediate_size"])
    return sizes


def _drawn(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Norms are one; an embedding's numbers have variance 1; a matrix keeps the variance of its input."""
    if len(size) == 1:
        return torch.ones(size, device=generator.device)
    drawn = torch.randn(size, generator=generator, device=generator.device)
    if "embed_tokens" in name:
        return drawn
    router = name.endswith("mlp.gate.weight")
    return drawn.mul_((ROUTER if router else 1.0) / math.sqrt(size[1]))


def _stored(name: str, weight: Tensor, *, fp8: bool) -> dict[str, Tensor]:
    """By the names of a checkpoint, on the host."""
    if not fp8 or any(part in name for part in NOT_QUANTIZED):
        return {name: weight.bfloat16().cpu()}
    rows, columns = (length // BLOCK for length in weight.shape)
    blocks = weight.view(rows, BLOCK, columns, BLOCK)
    scale = blocks.abs().amax((1, 3)) / LARGEST_FP8
    quantized = (blocks / scale[:, None, :, None]).view(weight.shape).to(torch.float8_e4m3fn)
    return {name: quantized.cpu(), f"{name}_scale_inv": scale.float().cpu()}
