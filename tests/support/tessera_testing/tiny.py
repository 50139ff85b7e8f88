"""Where the tiny real models are: in the repository, so no download is needed.

Models of Python code, made by `benchmarks/models/train_tiny.py`. All share
one vocabulary of 1024 tokens and 4096 positions, and are bfloat16 on disk.
"""

from pathlib import Path

_MODELS = Path(__file__).resolve().parents[1] / "models"

#: The model that tests and the demo serve: 4 layers, hidden size 256, 4 MiB.
TINY: Path = _MODELS / "tiny"
#: Its draft model for speculative decoding: 2 layers, hidden size 128, 1 MiB.
TINY_DRAFT: Path = _MODELS / "tiny-draft"
#: Its EAGLE head: 1 layer, 0.6 MiB, made by `benchmarks/models/train_heads.py`.
TINY_EAGLE: Path = _MODELS / "tiny-eagle"
#: Its EAGLE-3 head: 1 layer that reads three of the target's, 0.9 MiB.
TINY_EAGLE3: Path = _MODELS / "tiny-eagle3"
#: A mixture of experts cut from the tiny model: Qwen3-MoE, 3 layers, 8 experts of which 2 are chosen, 3.4 MiB.
TINY_MOE: Path = _MODELS / "tiny-moe"
