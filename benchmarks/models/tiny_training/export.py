"""Writing a model as a Hugging Face folder that every version reads the same."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor

from tiny_training.forward import Model
from tiny_training.shapes import POSITIONS, Shape, config_of
from tiny_training.vocabulary import BOS_ID, EOS_ID, IM_END_ID, PAD_ID, write_tokenizer


@torch.no_grad()
def round_weights(model: Model) -> None:
    """Round the weights to bfloat16 in place, keeping float32 as their type.

    What is measured and distilled from afterwards is then what the file holds.
    """
    for weight in model.parameters():
        weight.copy_(weight.bfloat16())


def write_model(folder: Path, model: Model, shape: Shape, tokenizer: Tokenizer) -> int:
    """Write a Llama model with its tokenizer; return the folder's bytes."""
    weights = {
        # The output head is the embedding: stored once.
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    return write_folder(folder, weights, config_of(shape), tokenizer)


def write_folder(folder: Path, weights: dict[str, Tensor], config: dict[str, Any], tokenizer: Tokenizer) -> int:
    """Write weights, configuration and tokenizer; return the folder's bytes.

    The configuration is written by us, not by `save_pretrained`, whose output
    depends on the version of transformers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation_config())
    write_tokenizer(folder, tokenizer, POSITIONS)
    return folder_bytes(folder)


def generation_config() -> dict[str, Any]:
    """`generation_config.json`: greedy, and both a file's and a turn's end stop it."""
    return {
        "bos_token_id": BOS_ID,
        "eos_token_id": [EOS_ID, IM_END_ID],
        "pad_token_id": PAD_ID,
        "do_sample": False,
    }


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in the folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as readable JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
