"""Where the Triton kernels run: on the GPU if there is one, else in Triton's interpreter.

The same tests run in both places. On a machine with a GPU they are marked ``gpu``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

HERE = Path(__file__).parent


def interpret() -> None:
    """Import Triton so that its kernels, and ours imported later, run in its interpreter in this process."""
    if "triton" in sys.modules:
        raise pytest.UsageError("triton was imported before tests/kernels was collected: run tests/kernels on its own")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton

    # From here on not through the environment: servers that other tests start would inherit it.
    del os.environ["TRITON_INTERPRET"]
    triton.knobs.propagate_env = False
    triton.knobs.runtime.interpret = True


if not torch.cuda.is_available():
    interpret()

# A program of the interpreter takes milliseconds, the first one more.
settings.register_profile("kernels", deadline=None, max_examples=10, derandomize=True)
settings.load_profile("kernels")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what will run on a GPU."""
    for item in items:
        if item.path.is_relative_to(HERE) and torch.cuda.is_available():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> str:
    """Where the tensors of a test live."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def sglang_imports(device: str) -> None:
    """SGLang's modules can be imported, also where there is no GPU. Import them late: they take seconds."""
    from tessera_kernels import cpu

    if device == "cpu":
        cpu.enable()
