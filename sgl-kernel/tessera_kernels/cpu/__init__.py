"""Lets SGLang serve on a machine without a GPU, with the ordinary CUDA wheel of ``sgl_kernel``."""

from __future__ import annotations

import importlib
import os
import sys

__all__ = ["enable"]

_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",  # SGLang takes its CPU code paths only when told to
    "TORCHDYNAMO_DISABLE": "1",  # compiling every new shape takes longer than running it
    "SGLANG_NCCL_SO_PATH": "none",  # ranks on CPUs talk through gloo, but where NCCL loads SGLang wants GPUs for it
}


def enable() -> bool:
    """Make ``sgl_kernel`` and its CPU operators usable in this process, and in the processes that it will start.

    Call it first in SGLang's plugin entry point, in every process. Where a CUDA driver is installed, on other systems
    than Linux, and with a torch built without CUDA it changes nothing.

    Returns:
        Whether it did something.

    Raises:
        RuntimeError: the processor is not supported, no folder is fit to hold the stand-in for the driver, or
            ``sgl_kernel`` does not load even so. The message says what to do.
    """
    if sys.platform != "linux":
        return False
    from . import driver

    if driver.real_driver_present():
        return False
    # Late, as torch is heavy: SGLang has it imported by now.
    import torch

    if torch.version.cuda is None:
        return False
    driver.install()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _register_operators()
    return True


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
