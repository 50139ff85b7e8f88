#!/usr/bin/env python3
"""Pack another SGLang with its own stack (torch, triton, kernels) for a GPU host with an older torch and no registry.

    python3 benchmarks/host/pack_other.py .venv --name .gpu23                           # .gpu23-0, .gpu23-1, ...
    python3 benchmarks/host/pack_other.py .venv --name .gpu23 --overlay .venv-0.5.17    # over its pack: .gpu23-overlay

Run from the checkout, when gpu_lease.sh has packed. Of GPU code only what Hopper runs is carried (trim_fatbin.py); of
libraries only those that the host's torch lacks or has in a version without functions that torch calls: here NCCL.
other_session.sh puts all together there. Takes two minutes of a quiet machine, and 4 GB beneath
TMPDIR; needs zstd, strip, readelf.
"""

import argparse
import importlib.metadata
import pathlib
import runpy
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator

import trim_fatbin

TOOLS = pathlib.Path(".gpu-tools")  # a copy of ../shared/gpu, as gpu_lease.sh makes it
ARCHITECTURE = 90
PART = 43 << 20  # bytes at most: a transfer holds 64 MiB, with the tree
LEVEL = "-9"
UNPACKER = shutil.ignore_patterns("_cffi*", "__pycache__", "*.pyi")
FA3 = "flash_ops.abi3.so"
# On the host in a version that does not go with this torch; it is small, or it is asked for by version.
BUILT = {"torch", "torchvision", "triton", "setuptools"}
CUTLASS = {"nvidia-cutlass-dsl", *(f"nvidia-cutlass-dsl-libs-{part}" for part in ("base", "core", "cu13"))}
CARRIED = BUILT | CUTLASS | {"timm", "sentencepiece", "protobuf", "typing-extensions", "nvidia-ml-py"}
# The venv's tools and what no path that we run imports, beside the lists of shared/gpu/pack.py.
UNUSED = set(  # a list of words, as there
    """nccl-extensions nvshmem4py-cu13 sgl-deep-ep sglang-router toploc mkdocs mkdocs-material
    mkdocs-material-extensions mkdocs-get-deps babel backrefs pymdown-extensions schemathesis jsonschema-rs fonttools
    ast-serialize hypothesis-jsonschema hypothesis-graphql graphql-core watchdog ghp-import mypy-extensions librt
    pytest-xdist deepseek-recipe tml-renderers nvidia-mathdx""".split()  # noqa: SIM905
)
DROP = (
    *("/tests/", "/test/", "__pycache__", ".pyi", ".a"),
    *("sgl_kernel/sm100", "sgl_kernel/infllm_ops", "sgl_kernel/flashmla_ops"),
    *("sglang/multimodal_gen/", "torch/bin/protoc", "torch/share/", "torch/include/"),
    *("sglang/srt/rust_extensions/_bench", "sglang/srt/rust_extensions/_grpc"),
    *("sglang/srt/rust_extensions/_multimodal", "sglang/srt/rust_extensions/_server"),
    *("nvidia_cutlass_dsl/cu12/", "cutlass/_mlir/_mlir_libs/_cutlass_ir.cu12"),
    *("triton/backends/amd/lib/", "triton/backends/amd/include/", "triton/_C/libproton"),
    *("triton/backends/nvidia/bin/", "triton/backends/nvidia/lib/cupti"),
    *("triton/instrumentation/", "triton/plugins/", "triton/FileCheck"),
    *("flashinfer/data/csrc/cake_", "flashinfer/data/csrc/alphamoe"),
    *(
        "flashinfer/fused_moe/backends/cudnn_frost/artifacts/",
        "flashinfer/data/csrc/kda/",
        "flashinfer/data/csrc/gdn/",
        "flashinfer/data/csrc/blackwell",
    ),
)
NCCL = "nvidia/nccl/lib/libnccl.so.2"


def dropped(name: str) -> bool:
    """Whether a file of a distribution stays here."""
    return any(part in "/" + name if "/" in part or part == "__pycache__" else name.endswith(part) for part in DROP)


def files(site: pathlib.Path, beneath: pathlib.Path | None) -> Iterator[str]:
    """Paths in `site` of what travels; over `beneath`, what differs from it and is not built for one torch."""
    known = runpy.run_path(str(TOOLS / "pack.py"))
    normal = known["normal"]
    out = {normal(name) for name in known["ON_HOST"] + known["UNUSED"]} | UNUSED
    carried = CARRIED
    if beneath:
        out |= {"sglang-kernel", "sgl-deep-gemm", "torch-memory-saver", "torch-c-dlpack-ext"}
        here = {dist.metadata["Name"]: dist.version for dist in installed(site)}
        out |= {
            normal(dist.metadata["Name"])
            for dist in installed(beneath)
            if dist.version == here.get(dist.metadata["Name"])
        }
        carried = CARRIED - BUILT - CUTLASS
    for dist in installed(site):
        name = normal(dist.metadata["Name"])
        if name == "sglang-tessera" or (name not in carried and (name in out or name.startswith("nvidia-"))):
            continue
        for file in map(str, dist.files or []):
            if not file.startswith("..") and not dropped(file) and (site / file).is_file():
                yield file
    if not beneath:
        yield NCCL


def installed(site: pathlib.Path) -> Iterable[importlib.metadata.Distribution]:
    """The distributions of a venv."""
    return importlib.metadata.distributions(path=[str(site)])


def smaller(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The library without symbols that only debuggers read, and with Hopper's GPU code alone."""
    trimmed, stripped = folder / "trimmed", folder / "stripped"
    # FlashAttention's kernels for FP8 and float16 are two thirds of it: we serve bfloat16 with it.
    unused = [b"float_e4m3", b"6half_t"] if path.name == FA3 else []
    trimmed.write_bytes(trim_fatbin.trim(path, ARCHITECTURE, unused)[0])
    subprocess.run(["strip", "--strip-unneeded", "-o", stripped, trimmed], check=True)  # noqa: S607
    return stripped


def pack(site: pathlib.Path, beneath: pathlib.Path | None, folder: pathlib.Path) -> pathlib.Path:
    """A compressed archive of what travels."""
    tar, packed = folder / "site.tar", folder / "site.tar.zst"
    with tarfile.open(tar, "w") as archive:
        for file in sorted(set(files(site, beneath))):
            path = site / file
            if ".so" in path.name and path.stat().st_size > 1 << 20:
                path = smaller(path, folder)
            archive.add(path, arcname=file)
    print(f"{tar.stat().st_size >> 20} MiB before compression", flush=True)
    subprocess.run(["zstd", "-q", "-f", LEVEL, "-T2", "--long=27", tar, "-o", packed], check=True)  # noqa: S607
    return packed


def main() -> None:
    """Write the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--name", default=".gpu-other")
    parser.add_argument("--overlay", type=pathlib.Path, metavar="VENV", help="the venv whose pack lies beneath")
    args = parser.parse_args()
    (site,) = args.venv.glob("lib/python3*/site-packages")
    beneath = next(args.overlay.glob("lib/python3*/site-packages")) if args.overlay else None
    with tempfile.TemporaryDirectory() as folder:
        packed = pack(site, beneath, pathlib.Path(folder))
        size = packed.stat().st_size
        count = 1 if beneath else -(-size // PART)
        with packed.open("rb") as file:
            for number in range(count):
                part = pathlib.Path(f"{args.name}-{'overlay' if beneath else number}")
                part.mkdir(exist_ok=True)
                data = file.read(-(-size // count))
                (part / ("overlay.tar.zst" if beneath else f"part.{number:02}")).write_bytes(data)
    if not beneath:  # what unpacks there
        shutil.copytree(site / "zstandard", f"{args.name}-0/zstandard", dirs_exist_ok=True, ignore=UNPACKER)
        library = next(pathlib.Path(f"{args.name}-0/zstandard").glob("backend_c*.so"))
        subprocess.run(["strip", "--strip-unneeded", library], check=True)  # noqa: S607
        commit = subprocess.check_output(["git", "describe", "--always", "--dirty", "--abbrev=10", "--match="])  # noqa: S607
        pathlib.Path(f"{args.name}-0/commit").write_bytes(commit)
    print(f"{size >> 20} MiB in {count} parts")


if __name__ == "__main__":
    main()
