"""What options decide beside features: which functions of SGLang's a server calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tessera.config import CONDITIONS, conditions_of
from tessera.flags import Flags
from tessera_testing.server_options import server_options

CHAIN = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3}
TREE = {"speculative_algorithm": "STANDALONE", "speculative_num_steps": 3, "speculative_eagle_topk": 4}
ROWS = {"return_hidden_states_mode": "full"}
CUDA, SAMPLED = {"device": "cuda"}, {"speculative_use_rejection_sampling": True}


def args(**named: Any) -> Any:
    """SGLang's, with these among them; attention is that of the CPU engine."""
    stock: dict[str, Any] = {
        "device": "cpu",
        "return_hidden_states_mode": None,
        "crash_dump_folder": "",
        "enable_multi_layer_eagle": False,
        "attention_backends": ("torch_native", "torch_native"),
        **dict.fromkeys(("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"), None),
        "speculative_use_rejection_sampling": False,
    }
    return server_options(**stock | named)


@pytest.mark.parametrize(
    ("given", "sized", "expected"),
    [
        ({}, False, set()),
        ({"crash_dump_folder": "/tmp"}, False, {"crash_dumps"}),  # noqa: S108 - nothing is written
        (CHAIN, False, {"draft_models"}),
        (CHAIN, True, {"draft_models", "eagle_chains", "cpu_chains"}),
        (CHAIN | SAMPLED, True, {"draft_models", "eagle_chains", "sampled_drafts"}),
        (CHAIN | CUDA, True, {"eagle_chains", "cuda_drafts", "cuda_chains"}),
        (CHAIN | CUDA | SAMPLED, True, {"eagle_chains", "cuda_drafts", "sampled_drafts"}),
        (CHAIN | {"speculative_num_steps": 1}, True, {"draft_models", "eagle_chains"}),
        (TREE, True, {"draft_models", "standalone_trees", "cpu_trees"}),
        (TREE | CUDA, True, {"standalone_trees", "cuda_drafts", "cuda_trees"}),
        (TREE | CUDA | {"speculative_num_steps": 1}, True, {"standalone_trees", "cuda_drafts"}),
        (TREE | ROWS | CUDA, False, {"row_trees"}),
        (TREE | ROWS | CUDA | {"enable_multi_layer_eagle": True}, False, set()),
        (TREE | ROWS | {"speculative_algorithm": "NGRAM"}, False, set()),
    ],
)
def test_what_holds(given: dict[str, Any], sized: bool, expected: set[str]) -> None:
    """Of drafts that size themselves, of draft models, of rows, of dumps."""
    assert {*conditions_of(args(**given), replace(Flags(), tile_spec=sized))} == expected


def test_each_can_hold() -> None:
    """And one of the page's."""
    assert "playground" in conditions_of(args(), replace(Flags(), tessera_ui=True))
    assert len(CONDITIONS) == len({*CONDITIONS})
