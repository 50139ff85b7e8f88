"""Make a folder with the shape of Qwen3-30B-A3B, for ``--load-format dummy``: configuration and tokenizer.

All 48 layers take 57 GiB in bfloat16; two servers side by side on one H200 need `--layers 24` or fewer. Each layer is
the real one: 128 experts of 768 neurons, 8 of them for each token. Example:

  python benchmarks/moe_shape.py /models/30b-a3b --layers 24

Dummy weights are small random numbers: good for times. Their routers hardly prefer any expert, so rows of two runners
differ more than a trained model's; for agreement serve a trained one (`python/tessera/testing/models/tiny-moe`).
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from tessera.testing.tiny import TINY_MOE

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


def make(folder: Path, layers: int) -> None:
    """Write the folder; its tokenizer is the tiny model's, whose ids all exist in the larger vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(SHAPE | {"num_hidden_layers": layers}, indent=2) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY_MOE / name, folder / name)


def main() -> None:
    """Read the command line, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write it")
    parser.add_argument("--layers", type=int, default=48, help="48 are the whole model (default %(default)s)")
    options = parser.parse_args()
    make(options.folder, options.layers)
    print(f"{options.folder}: {options.layers} layers; serve it with --load-format dummy")


if __name__ == "__main__":
    main()
