"""The two models' dimensions, and their Hugging Face configuration."""

from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from tiny_training.vocabulary import BOS_ID, EOS_ID, PAD_ID

POSITIONS = 4096
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    """Dimensions of one Llama model with tied embeddings.

    Every one of them, halved for tensor parallel 2, is a multiple of 32, which the
    CPU kernels want.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 64
    vocabulary: int = 1024


#: 2.0 million parameters: 4 MiB in bfloat16 with its tokenizer.
TARGET = Shape(hidden=256, intermediate=320, layers=4, heads=4, kv_heads=2)
#: 0.51 million parameters: 1 MiB in bfloat16 with its tokenizer.
DRAFT = Shape(hidden=128, intermediate=320, layers=2, heads=2, kv_heads=2)


def config_of(shape: Shape) -> dict[str, Any]:
    """`config.json`, readable by transformers 4 and 5 and by SGLang.

    RoPE's base and the number type stand there twice: version 4 and 5 look for them
    under different keys, and each ignores the other's.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "max_position_embeddings": POSITIONS,
        "rope_theta": ROPE_THETA,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }


def new_model(shape: Shape) -> LlamaForCausalLM:
    """A freshly initialised model with float32 weights, on the CPU."""
    settings = config_of(shape)
    # The files hold bfloat16; the weights being trained stay float32.
    settings["torch_dtype"] = settings["dtype"] = "float32"
    return LlamaForCausalLM(LlamaConfig.from_dict(settings)).float()
