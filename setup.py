"""The one distribution, `sglang-tessera`: three source roots, three import names.

Tool settings are in pyproject.toml; what is installed, and how SGLang finds it, is here.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent

# Imports point one way: tessera_patches -> tessera -> tessera_kernels.
ROOTS = {
    "tessera": "python/tessera",
    "tessera_kernels": "sgl-kernel/tessera_kernels",
    "tessera_patches": "patches/tessera_patches",
}

CLIENT = ["httpx>=0.27", "msgspec>=0.19", "numpy>=1.26"]


def found(path: str, pattern: str) -> str:
    """Return what stands in a file of this repository, without importing it."""
    match = re.search(pattern, (HERE / path).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"{path} has no line like {pattern}")
    return match.group(1)


SGLANG = found("patches/tessera_patches/support.py", r'^DEFAULT, OTHER = "(.+?)"')

EXTRAS = {
    # SGLang leaves starlette open; below 1.0.1 its API-key check can be passed by (CVE-2026-48710).
    "engine": [f"sglang=={SGLANG}", "numba", "starlette>=1.0.1"],
    # The client library over HTTP: neither SGLang nor torch.
    "client": CLIENT,
    # `tessera encode`: Ray Data brings pyarrow and pandas.
    "encode": [*CLIENT, "ray[data]>=2.51"],
    "plot": ["matplotlib>=3.9"],
    # The same interface over a model in the client's own process.
    "local": [*CLIENT, "torch>=2.4", "transformers>=4.50"],
    # Linters are pinned: a new rule must not turn an unchanged tree red.
    "dev": [
        *CLIENT,
        "hypothesis>=6.100",
        "matplotlib>=3.9",
        "mkdocs==1.6.1",
        "mkdocs-material==9.8.2",
        "mypy==2.4.1",
        "pytest>=9,<9.2",  # from 9.2 on pytest-xdist 3.8 ignores groups (pytest-dev/pytest-xdist#1386)
        "pytest-timeout>=2.4",
        "pytest-xdist>=3.8",
        "requests>=2.32",
        "ruff==0.17.5",
        "schemathesis>=4.32,<5",
        "sglang-router==0.3.2",  # the tests of what a proxy leaves of our fields
        "toploc==0.1.6",
    ],
}


def long_description() -> str:
    """Return README.md for a package index, which has none of the files that its relative links lead to."""
    text = re.sub(r"\[([^\]\n]+)\]\((?!\w+:)[^)\s]+\)", r"\1", (HERE / "README.md").read_text(encoding="utf-8"))
    return f"{text}\nThe pages named above are in `docs/` of the source distribution.\n"


def packages() -> list[str]:
    """Return the packages of the wheel by import names: all below the three roots, but for what no GPU server runs.

    That is the CPU engine and the campaign that calibrates fingerprints. An editable install has them, and the source
    distribution has their files (MANIFEST.in).
    """
    names = []
    for name, path in ROOTS.items():
        inner = find_packages(str(HERE / path), exclude=["cpu", "cpu.*", "*.calibration"])
        names += [name, *(f"{name}.{package}" for package in inner)]
    return names


setup(
    name="sglang-tessera",
    version=found("python/tessera/__init__.py", r'^__version__ = "(.+)"$'),
    description="Exact embeddings, fingerprints and fast decoding from a stock SGLang server",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    project_urls={
        "SGLang": "https://github.com/sgl-project/sglang",
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    keywords="sglang llm inference embeddings hidden-states toploc speculative-decoding",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    packages=packages(),
    package_dir=ROOTS,
    package_data={
        "tessera": ["py.typed", "ui/*.html", "ui/*.css", "ui/*.js"],
        "tessera_kernels": ["py.typed"],
        "tessera_patches": ["py.typed", "**/*.json", "**/*.toml"],
    },
    install_requires=["msgspec>=0.19", "numpy>=1.26", "packaging>=21"],
    extras_require=EXTRAS,
    entry_points={
        "sglang.srt.plugins": ["tessera = tessera.plugin:register"],
        "console_scripts": ["tessera = tessera.cli:main"],
    },
    zip_safe=False,
)
