"""What the tests on a GPU compare with."""

from __future__ import annotations

import pytest
import torch

from tessera.testing.reference import HuggingFace
from tessera.testing.tiny import TINY


@pytest.fixture(scope="session")
def hf() -> HuggingFace:
    """The float32 reference of the tiny model, on the processor."""
    torch.set_num_threads(4)  # more of them fight with the servers' busy loops, and take minutes instead of seconds
    return HuggingFace(TINY)
