"""Whether this machine has a CUDA driver."""

import ctypes
import sys

SONAME = "libcuda.so.1"
# Tells our stand-in from a real driver in a child process, which finds it through LD_LIBRARY_PATH.
MARKER = "tessera_stand_in_driver"


def is_present() -> bool:
    """Return whether the dynamic linker finds a CUDA driver library that is not our stand-in.

    The library is loaded but not called, so CUDA is not initialised.
    """
    try:
        library = ctypes.CDLL(SONAME)
    except OSError:
        return False
    return not hasattr(library, MARKER)


def is_missing() -> bool:
    """Return whether the CUDA wheel of ``sgl_kernel`` does not load here, for there is no driver.

    On other systems than Linux, and with a torch built without CUDA, there is no such wheel.
    """
    if sys.platform != "linux" or is_present():
        return False
    # Here, because torch is heavy; SGLang has imported it already.
    import torch

    return torch.version.cuda is not None
