"""What the tests on a GPU compare with."""

from __future__ import annotations

import pytest
import torch

from tessera_testing.reference import HuggingFace
from tessera_testing.starts import TWO_RANKS, Ranks
from tessera_testing.tiny import TINY


@pytest.fixture(scope="session")
def hf() -> HuggingFace:
    """The float32 reference of the tiny model, on the processor."""
    torch.set_num_threads(4)  # more of them fight with the servers' busy loops, and take minutes instead of seconds
    return HuggingFace(TINY)


@pytest.fixture(scope="session")
def two_ranks() -> Ranks:
    """On two GPUs; where there is one, both on it, and slowly: they take turns, also in what both must do at once."""
    env = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}  # other servers may start meanwhile
    if torch.cuda.device_count() > 1:
        return Ranks(TWO_RANKS, env, ())
    return Ranks((*TWO_RANKS, "--disable-custom-all-reduce"), env | {"NCCL_SOCKET_IFNAME": "lo"}, ("one-gpu",))
