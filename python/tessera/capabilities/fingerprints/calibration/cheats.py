"""Models that a dishonest prover might serve instead: copies of a model folder with changed weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line names these cheats where no engine is installed
    import torch

_INT4_GROUP = 128
_FP8_MAX = 448.0

Change = Callable[["torch.Tensor"], "torch.Tensor"]


def int8(weight: torch.Tensor) -> torch.Tensor:
    """Rounded to 8 bits, one scale for each row."""
    return _rounded(weight, 127)


def int4(weight: torch.Tensor) -> torch.Tensor:
    """Rounded to 4 bits, one scale for each 128 columns of a row, as GPTQ and AWQ have it."""
    columns = weight.shape[1]
    group = _INT4_GROUP if columns % _INT4_GROUP == 0 else columns
    return _rounded(weight.reshape(-1, group), 7).reshape(weight.shape)


def fp8(weight: torch.Tensor) -> torch.Tensor:
    """Rounded to float8_e4m3, one scale for each row."""
    import torch

    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / _FP8_MAX
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def _rounded(weight: torch.Tensor, levels: int) -> torch.Tensor:
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / levels
    return (weight / scale).round() * scale


PRECISIONS: dict[str, Change] = {"int8": int8, "fp8": fp8, "int4": int4}


def requantize(model: Path, copy: Path, precision: str) -> None:
    """Write a copy whose weight matrices are rounded, and stored in their old dtype; embeddings and norms stay.

    Args:
        model: folder with safetensors files.
        copy: an empty folder.
        precision: a key of `PRECISIONS`.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    change = PRECISIONS[precision]
    for path in sorted(model.iterdir()):
        if path.suffix != ".safetensors":
            _copied(path, copy)
            continue
        with safe_open(path, "pt") as weights:
            changed = {name: _changed(name, weights.get_tensor(name), change) for name in weights.keys()}  # noqa: SIM118 - no mapping
        save_file(changed, copy / path.name, metadata={"format": "pt"})


def without_last_layer(model: Path, copy: Path) -> None:
    """Write a copy that skips the last layer."""
    for path in model.iterdir():
        _copied(path, copy)
    config = json.loads((model / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    (copy / "config.json").write_text(json.dumps(config))


def _changed(name: str, weight: torch.Tensor, change: Change) -> torch.Tensor:
    is_matrix = weight.dim() == 2 and weight.is_floating_point() and "embed" not in name  # noqa: PLR2004 - rows, columns
    return change(weight.float()).to(weight.dtype) if is_matrix else weight


def _copied(path: Path, folder: Path) -> None:
    if path.is_file():
        shutil.copyfile(path, folder / path.name)
