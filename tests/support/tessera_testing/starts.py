"""Options of servers that share a GPU with others, and of servers of several ranks."""

from __future__ import annotations

from typing import NamedTuple

from tessera import versions
from tessera_patches import support

SMALL = (
    *("--mem-fraction-static", "0.5", "--max-total-tokens", "60000"),
    *("--cuda-graph-bs-prefill", "16", "64", "512"),
)
"""Options of a server that shares a GPU with others that start meanwhile: the second one bounds what it takes, the
third one makes its start half as long."""

TWO_RANKS = ("--tp-size", "2")
"""Options of a server whose model is split over two processes. Without a GPU, SGLang wants `RANKS_ON_CPUS` too."""
RANKS_ON_CPUS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
STAGES_ON_CPUS = RANKS_ON_CPUS if versions.within(versions.installed() or support.DEFAULT, ">=0.5.22") else {}
"""The same for ``--pp-size 2`` and ``--dp-size 2``: 0.5.17 counts the ranks of one stage, and refuses more here."""


HOST_CACHE = ("--enable-hierarchical-cache", "--hicache-ratio", "8", "--max-total-tokens", "700")
"""Options of a server in whose KV slots few prompts fit, and whose evicted prefixes the host's memory keeps."""


class Ranks(NamedTuple):
    """How a server of several ranks is started: options, environment, names of the tests' faults that it needs."""

    options: tuple[str, ...]
    env: dict[str, str]
    faults: tuple[str, ...]


STATES_ON_A_CPU = ("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule")
"""For models with a state beside their KV. Without a GPU, SGLang keeps states in no other way; 0.5.17 keeps wrong ones
otherwise."""
FLOAT32_STATES = {"SGLANG_MAMBA_CONV_DTYPE": "float32"}
"""Environment: SGLang keeps the states of convolutions in bfloat16 otherwise."""
