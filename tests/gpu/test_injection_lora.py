"""Injection into float16 models, one of them a mixture of experts, with LoRA adapters that some requests use."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch

from tessera.launching.server import Server
from tessera_testing import adapters
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, Vector, relative_error
from tessera_testing.starts import SMALL
from tessera_testing.tiny import TINY, TINY_MOE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: LoRA wants pinned memory"),
]

FLOAT16_ERROR = 5e-3
"""Of means: ten times that of transformers in float16 (4e-4, 2e-4 of the experts), and an eighth of the least distance
between two means with and without adapter or vectors (0.04)."""
H = 256
PROMPT = list(range(200, 240))
VECTORS = (np.random.default_rng(5).standard_normal((2, H)) / 16).astype("<f2")
PLACES = [3, 30]


CASES = {
    "dense": (TINY, adapters.ATTENTION),
    "attention": (TINY_MOE, adapters.ATTENTION),
    "experts": (TINY_MOE, (*adapters.ATTENTION, *adapters.EXPERTS)),
}
"""A model, and what of it the adapter changes."""


class Adapted(NamedTuple):
    """A model and a random adapter of it, and the references of the model without it, and with it."""

    model: Path
    adapter: Path
    hf: HuggingFace
    merged: HuggingFace


@pytest.fixture(scope="module", params=CASES)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """One of each case."""
    torch.set_num_threads(4)  # as the fixture of the reference
    model, parts = CASES[request.param]
    adapter = adapters.make(tmp_path_factory.mktemp("adapter"), 0, model, parts)
    merged = adapters.merged(adapter, tmp_path_factory.mktemp("merged"), model)
    return Adapted(model, adapter, HuggingFace(model), merged)


@pytest.fixture
def half(server_pool: ServerPool, adapted: Adapted) -> Server:
    """A float16 server with injection, rows and the adapter."""
    lora = ("--enable-lora", "--lora-paths", f"own={adapted.adapter}", *SMALL, "--attention-backend", "triton")
    options = ("--enable-return-hidden-states", "--enable-injection", "--dtype", "float16", *lora)
    return server_pool.get(*options, model=adapted.model)


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


def test_with_and_without_the_adapter(half: Server, adapted: Adapted) -> None:
    """The same vectors behind the same prefix, again and again: each gets the KV of its own adapter."""
    hf, merged = adapted.hf, adapted.merged
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


def test_a_matrix_for_a_float16_model(half: Server, adapted: Adapted) -> None:
    """Stock SGLang casts it to bfloat16, and ends."""
    hf = adapted.hf
    table = hf.embeddings()[PROMPT].astype("<f2")
    matrix = {"data": base64.b64encode(table.tobytes()).decode(), "shape": [40, H], "dtype": "float16"}
    for fields in ({"input_embeds_b64": matrix}, {"input_embeds": table.astype(float).tolist()}):
        assert relative_error(pooled(half, **fields), hf.states(PROMPT).mean(0)) <= FLOAT16_ERROR
    too_large = {"positions": [0], "embeds": [[9000.0] * H], "scale": 1.0}
    assert pooled(half, input_ids=PROMPT, input_embed_overrides=too_large)
