"""Make a model of Qwen3-30B-A3B's shape: configuration, tokenizer, random weights.

All 48 layers take 57 GiB in bfloat16; six servers side by side on one H200, as `bench_moe.py` starts them, need
`--layers 12` or fewer: 8 take 10 GiB. Each layer is the real one: 128 experts of 768 neurons, 8 of them for each token.

  python benchmarks/moe_shape.py /models/30b-a3b --layers 8

The weights have a real model's scale and its routers preferences (`random_weights.py`); with SGLang's ``--load-format
dummy`` all tokens wake the same experts, and the rows of all runners are the same. For agreement of a trained model
serve `tests/support/models/tiny-moe`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch

import random_weights
from tessera_testing.tiny import TINY_MOE

SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "rope_scaling": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}
DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
}
"""A dense draft model for STANDALONE speculative decoding, of the same vocabulary."""
SHARED = (
    *("vocab_size", "head_dim", "hidden_act", "max_position_embeddings", "rope_theta", "rope_scaling"),
    *("rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype", "torch_dtype"),
)
"""What the draft has of the target."""
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
"""As in Qwen3-30B-A3B-FP8: scales by block, which `deep_gemm`, `cutlass` and `hpc_ops` want."""


def make(folder: Path, layers: int, *, draft: bool = False, fp8: bool = False) -> dict[str, Any]:
    """Write the folder, without weights. The tokenizer is the tiny model's: its ids exist in the larger vocabulary.

    Returns:
        The configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = DRAFT | {name: SHAPE[name] for name in SHARED} if draft else SHAPE | {"num_hidden_layers": layers}
    shape |= {"quantization_config": FP8} if fp8 else {}
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY_MOE / name, folder / name)
    return shape


def main() -> None:
    """Read the command line, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write it")
    parser.add_argument("--layers", type=int, default=48, help="48 are the whole model (default %(default)s)")
    parser.add_argument("--draft", action="store_true", help="a small draft model instead, for bench_moe_steps.py")
    parser.add_argument("--fp8", action="store_true", help="with FP8 weights, scaled by blocks of 128 x 128")
    options = parser.parse_args()
    config = make(options.folder, options.layers, draft=options.draft, fp8=options.fp8)
    random_weights.write(options.folder, config, "cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
