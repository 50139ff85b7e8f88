"""SGLang's CPU engine with the CUDA wheel of ``sgl_kernel``, on a machine without a GPU."""

import functools
import importlib
import os
from types import ModuleType

from tessera_kernels.driver import is_missing

__all__ = ["enable"]

_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",  # selects SGLang's CPU code paths
    "TORCHDYNAMO_DISABLE": "1",  # compiling a new shape takes longer than running it
    "SGLANG_OPT_USE_GUMBEL_SAMPLE": "0",  # samples with torch instead of a Triton kernel
    "SGLANG_NCCL_SO_PATH": "none",  # CPU ranks use gloo; SGLang requires GPUs wherever NCCL loads
}


def enable() -> bool:
    """Make ``sgl_kernel`` and its CPU operators usable in this process and its children.

    Call it first in SGLang's plugin entry point, in every process. It does nothing where a CUDA driver is installed, on
    other systems than Linux, and with a torch built without CUDA.

    Returns:
        Whether it changed anything.

    Raises:
        RuntimeError: the processor is not supported, no folder can hold the stand-in for the driver, or ``sgl_kernel``
            does not load with it. The message says what to do.
    """
    if not is_missing():
        return False
    from . import driver

    driver.install()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _prefer_cpu()
    _register_operators()
    return True


def _prefer_cpu() -> None:
    """Without a device, ``torch.get_device_module`` is ``torch.cpu``, as it is up to torch 2.11.

    In the CUDA wheel of 2.14 it is ``torch.cuda`` even where there is no driver. SGLang waits for that module's device
    when memory is released.
    """
    import torch

    stock = torch.get_device_module
    if stock() is torch.cpu:
        return

    @functools.cache
    def get_device_module(device: "torch.device | str | None" = None) -> ModuleType:
        module: ModuleType = stock("cpu" if device is None else device)
        return module

    torch.get_device_module = get_device_module


def _register_operators() -> None:
    try:
        importlib.import_module("sgl_kernel")
    except ImportError as error:
        raise RuntimeError(
            "sgl_kernel does not load on this machine, although a stand-in for the CUDA driver is in place: "
            "reinstall sglang-kernel in the version that this SGLang asks for"
        ) from error
    from . import ops

    ops.register()
