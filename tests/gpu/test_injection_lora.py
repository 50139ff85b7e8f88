"""Injection into a float16 model, with LoRA adapters that some requests use."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tessera.launching.server import Server
from tessera_testing import adapters
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, Vector, relative_error
from tessera_testing.starts import SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: LoRA wants pinned memory"),
]

FLOAT16_ERROR = 5e-3
H = 256
PROMPT = list(range(200, 240))
VECTORS = (np.random.default_rng(5).standard_normal((2, H)) / 16).astype("<f2")
PLACES = [3, 30]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random adapter."""
    return adapters.make(tmp_path_factory.mktemp("adapter"), 0)


@pytest.fixture(scope="module")
def merged(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> HuggingFace:
    """The reference of the model with the adapter."""
    return adapters.merged(adapter, tmp_path_factory.mktemp("merged"))


@pytest.fixture
def half(server_pool: ServerPool, adapter: Path) -> Server:
    """A float16 server with injection, rows and the adapter."""
    lora = ("--enable-lora", "--lora-paths", f"own={adapter}", *SMALL)
    return server_pool.get("--enable-return-hidden-states", "--enable-injection", "--dtype", "float16", *lora)


def edit(embeds: torch.Tensor) -> torch.Tensor:
    """What the reference does."""
    embeds[PLACES] = torch.from_numpy(VECTORS.astype("<f4"))
    return embeds


def pooled(server: Server, **fields: Any) -> Any:
    """The mean over the prompt."""
    body = {"sampling_params": {"max_new_tokens": 2, "temperature": 0}, "return_embedding": True, **fields}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["meta_info"]["embedding"]


def test_with_and_without_the_adapter(half: Server, hf: HuggingFace, merged: HuggingFace) -> None:
    """The same vectors behind the same prefix, again and again: each gets the KV of its own adapter."""
    data = base64.b64encode(VECTORS.tobytes()).decode()
    injected = {"positions": PLACES, "embeds": data, "shape": [2, H], "dtype": "float16"}
    expected: list[tuple[dict[str, Any], Vector]] = [
        ({"input_embed_overrides": injected, "lora_path": "own"}, merged.edited(PROMPT, edit)),
        ({"input_embed_overrides": injected}, hf.edited(PROMPT, edit)),
        ({"lora_path": "own"}, merged.states(PROMPT)),
        ({}, hf.states(PROMPT)),
    ]
    for fields, states in expected * 2:
        assert relative_error(pooled(half, input_ids=PROMPT, **fields), states.mean(0)) <= FLOAT16_ERROR
    means = [states.mean(0) for _, states in expected]
    assert min(relative_error(one, other) for one in means for other in means if one is not other) > 0.02


def test_a_matrix_for_a_float16_model(half: Server, hf: HuggingFace) -> None:
    """Stock SGLang casts it to bfloat16, and ends."""
    table = hf.embeddings()[PROMPT].astype("<f2")
    matrix = {"data": base64.b64encode(table.tobytes()).decode(), "shape": [40, H], "dtype": "float16"}
    for fields in ({"input_embeds_b64": matrix}, {"input_embeds": table.astype(float).tolist()}):
        assert relative_error(pooled(half, **fields), hf.states(PROMPT).mean(0)) <= FLOAT16_ERROR
    too_large = {"positions": [0], "embeds": [[9000.0] * H], "scale": 1.0}
    assert pooled(half, input_ids=PROMPT, input_embed_overrides=too_large)
