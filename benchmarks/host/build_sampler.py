"""Build FlashInfer's sampling kernels, SGLang's default sampler, for a GPU host that cannot compile them.

    python benchmarks/host/build_sampler.py OUT/sampling.so

Four minutes of nvcc, for Hopper. Where the file lies as ``flashinfer/data/aot/sampling/sampling.so``, FlashInfer loads
it and compiles nothing. The headers and libraries that a machine without CUDA lacks come from the environment's wheels.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Compile and link."""
    cuda = Path(sysconfig.get_paths()["purelib"], "nvidia/cu13")
    cache = os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(Path(tempfile.gettempdir(), "tessera-sampler")))
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
    # Only what is missing: another version's CUDA headers before nvcc's own would not fit together.
    include, library = Path(cache, "include"), Path(cache, "lib")
    for folder, files in ((include, cuda.glob("include/curand*.h")), (library, [cuda / "lib/libcudart.so.13"])):
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, folder / file.name.removesuffix(".13"))
    (library / "libcuda.so").unlink(missing_ok=True)
    (library / "libcuda.so").symlink_to("libcudart.so")  # only named: nothing of it is used
    os.environ |= {"CPATH": str(include), "LIBRARY_PATH": str(library)}

    from flashinfer.jit.sampling import gen_sampling_module

    spec: Any = gen_sampling_module()  # later versions declare no verbose, and take it
    spec.build(verbose=False)
    subprocess.run(["strip", "--strip-unneeded", "-o", sys.argv[1], spec.get_library_path()], check=True)  # noqa: S607


if __name__ == "__main__":
    main()
