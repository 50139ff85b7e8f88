"""One copy of the target's weights on a GPU, for all servers that take turns there.

Eight servers of 8B shape do not fit on one H200, each with 16 GB of weights that are the same. So the first one writes
down where its weights lie (by CUDA IPC; on a CPU, in shared memory), and each other one, which draws its own at random,
lets go of them and uses the first one's: one after the other, for eight that start at once have no room for them
either. Shapes, layouts and kernels are what they were; the servers may live no longer than the first one. SGLang's own
weight cache (`--weight-cache-mode`) does the same, and refuses speculation.

`register` is a plugin of SGLang's (`plugins.py`).
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tilespec.plugins import wait_for

FOLDER, FIRST = "TILESPEC_WEIGHTS", "TILESPEC_WEIGHTS_FIRST"


def sharing(folder: Path, *, first: bool) -> dict[str, str]:
    """What a server needs in its environment; `first` for the one whose weights all use, which starts before them."""
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").unlink(missing_ok=True)
    return {FOLDER: str(folder), FIRST: "1" if first else ""}


def register() -> None:
    """Hook the loading of models (SGLang calls this in each of its processes)."""
    if FOLDER not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_loader.loader.DefaultModelLoader.load_model", _load_model, HookType.AROUND)


def _load_model(original: Callable[..., nn.Module], loader: Any, *, model_config: Any, device_config: Any) -> nn.Module:
    folder = Path(os.environ[FOLDER])
    weights = folder / "weights"
    if not model_config.is_draft_model and not os.environ[FIRST]:
        wait_for(weights, "the first server has not written where its weights are")
        with (folder / "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # until the file is closed
            model = _drawn(model_config, device_config)
            _read(model, weights)
        return model
    model = original(loader, model_config=model_config, device_config=device_config)
    if not model_config.is_draft_model:
        _write(model, weights)
    return model


def _drawn(model_config: Any, device_config: Any) -> nn.Module:
    """The model with random weights, without a look at its files: 16 GB that would be thrown away."""
    from sglang.srt.configs.load_config import LoadConfig, LoadFormat
    from sglang.srt.model_loader.loader import DummyModelLoader

    loader = DummyModelLoader(LoadConfig(load_format=LoadFormat.DUMMY))
    model: nn.Module = loader.load_model(model_config=model_config, device_config=device_config)
    return model


def _write(model: nn.Module, path: Path) -> None:
    from sglang.srt.utils import MultiprocessingSerializer

    if not torch.cuda.is_available():
        torch.multiprocessing.set_sharing_strategy("file_system")
    tensors = {name: parameter.data for name, parameter in model.named_parameters()}
    new = path.with_suffix(".new")
    new.write_bytes(MultiprocessingSerializer.serialize(tensors))
    new.rename(path)


def _read(model: nn.Module, path: Path) -> None:
    from sglang.srt.utils import MultiprocessingSerializer

    tensors = MultiprocessingSerializer.deserialize(path.read_bytes())
    for name, parameter in model.named_parameters():
        there = tensors.pop(name)
        if (there.shape, there.dtype, there.stride()) != (parameter.shape, parameter.dtype, parameter.stride()):
            raise RuntimeError(f"{name} is another tensor in the first server")
        parameter.data = there
    if tensors:
        raise RuntimeError(f"the first server has weights that this one does not: {', '.join(tensors)}")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    print(f"the target's weights are the first server's: {path}", flush=True)
