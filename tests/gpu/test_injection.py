"""Injection beside what SGLang's CPU engine cannot do: grammars; and penalties."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, cosine
from tessera_testing.starts import SMALL
from tessera_testing.tiny import TINY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SERVER = ("--enable-return-hidden-states", "--enable-injection", *SMALL)


@pytest.mark.parametrize(
    "sampling",
    [
        {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2, "min_new_tokens": 3},
        {"regex": "[a-z]+"},
    ],
    ids=["penalties", "grammar"],
)
def test_beside(server_pool: ServerPool, sampling: dict[str, Any]) -> None:
    """Two lengths in one batch, one of them injected; each embedding is its own."""
    server, hf = server_pool.get(*SERVER), HuggingFace(TINY)
    prompts = [list(range(100, 109)), list(range(200, 231))]
    vectors = (np.random.default_rng(70).standard_normal((2, 256)) / 16).astype("<f4")
    data = {"embeds": base64.b64encode(vectors.tobytes()).decode(), "shape": [2, 256], "dtype": "float32"}
    body = {
        "input_ids": prompts,
        "sampling_params": {"max_new_tokens": 8, "temperature": 0, **sampling},
        "input_embed_overrides": [None, {"positions": [2, 30], **data}],
        "return_embedding": True,
    }
    answers = httpx.post(f"{server.url}/generate", json=body, timeout=120).raise_for_status().json()

    def edit(embeds: torch.Tensor) -> torch.Tensor:
        embeds[[2, 30]] = torch.from_numpy(vectors.copy())
        return embeds

    expected = [hf.states(prompts[0]).mean(0), hf.edited(prompts[1], edit).mean(0)]
    for answer, mean in zip(answers, expected, strict=True):
        assert cosine(answer["meta_info"]["embedding"], mean) >= 0.999
