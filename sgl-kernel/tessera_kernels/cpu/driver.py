"""A stand-in for the CUDA driver library on a machine without one, so that the CUDA wheel of ``sgl_kernel`` loads.

The wheel's ``common_ops`` names ``libcuda.so.1`` as needed and takes one function from it. The stand-in is written from
Python (:mod:`.elf`), so a user needs no compiler.
"""

import ctypes
import hashlib
import os
import platform

from tessera_kernels import private_cache
from tessera_kernels.driver import MARKER, SONAME

from . import elf

_SEARCH_PATH = "LD_LIBRARY_PATH"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
# With cuInit missing, the CUDA runtime reports that there is no driver, as it does without any library.
_FUNCTIONS = {"cuPointerGetAttribute": _NO_DEVICE, MARKER: 1}


def install() -> None:
    """Load the stand-in into this process and put its folder in front of the search path of child processes.

    Raises:
        RuntimeError: an unsupported processor, or no folder from which a library can be loaded.
    """
    machine = platform.machine()
    if machine not in elf.MACHINES:
        raise RuntimeError(
            f"Tessera has no stand-in for the CUDA driver on a {machine} processor: install a CUDA driver, "
            f"or run on one of {', '.join(elf.MACHINES)}"
        )
    content = elf.shared_object(SONAME, _FUNCTIONS, machine)
    # The content names the folder: other versions and other machines that share this home keep theirs.
    name = f"driver-{machine}-{hashlib.sha256(content).hexdigest()[:16]}"
    failures = []
    for root in private_cache.roots():
        library = root / name / SONAME
        try:
            private_cache.write(library, content)
            # Once it is loaded, its SONAME satisfies every library that is loaded later and needs a driver.
            ctypes.CDLL(str(library))
        except OSError as error:
            failures.append(f"{root}: {error}")
        else:
            _prepend_search_path(str(library.parent))
            return
    raise RuntimeError(
        "Tessera cannot place its stand-in for the CUDA driver: set XDG_CACHE_HOME to a folder of your own on a file "
        f"system that is writable and not mounted noexec. Tried {'; '.join(failures)}"
    )


def _prepend_search_path(folder: str) -> None:
    present = os.environ.get(_SEARCH_PATH, "")
    if not present:  # joined to an empty value, the colon would add the working directory
        os.environ[_SEARCH_PATH] = folder
    elif folder not in present.split(":"):
        os.environ[_SEARCH_PATH] = f"{folder}:{present}"
