"""Two GPUs give the vectors that one gives, also of injected prompts, and fingerprints that it accepts."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import pytest
import torch

from tessera.fingerprint.calibration import accepted
from tessera.fingerprint.thresholds import Thresholds
from tessera.testing.generate import generate
from tessera.testing.launch import SMALL
from tessera.testing.pool import ServerPool
from tessera.testing.prover import ask, check
from tessera.testing.reference import cosine
from tessera.testing.server import Server

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason=f"tensor parallelism needs two CUDA devices, and there are {GPUS}"),
]

COMMON = ("--enable-return-hidden-states", *SMALL, "--grammar-backend", "none")
LEAST_COSINE = 0.9999
"""Of means; bfloat16 sums differ in their order."""


def prompts() -> list[list[int]]:
    """Lengths around chunks of 64, with shared beginnings."""
    chooser = random.Random("tensor parallel")
    trunk = [chooser.randrange(8, 1000) for _ in range(300)]
    return [trunk[:length] for length in (1, 2, 63, 64, 65, 128, 200, 300)] + [trunk[150:], trunk[::-1]]


def vectors_of(server: Server, prompt: list[int], tokens: int, **fields: Any) -> dict[str, Any]:
    """The mean over the prompt and its raw rows, after an encode or with some tokens generated."""
    states: dict[str, Any] = {"return_hidden_states": {"over": "prompt"}, "hidden_states_format": "base64"}
    meta: dict[str, Any] = generate(server, prompt, tokens, **states, return_embedding=True, **fields)["meta_info"]
    return meta


def rows_of(meta: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The raw rows as float32."""
    states = meta["hidden_states"]
    bits = np.frombuffer(base64.b64decode(states["data"]), "<u2").astype("<u4") << 16
    return bits.view("<f4").reshape(states["shape"])


def servers(server_pool: ServerPool) -> tuple[Server, Server]:
    """On one GPU, and on two: every test uses both."""
    one = server_pool.get(*COMMON, "--enable-injection", "--dtype", "bfloat16")
    return one, server_pool.get(*COMMON, "--enable-injection", "--dtype", "bfloat16", "--tp-size", "2")


def test_two_ranks_give_the_vectors_of_one(server_pool: ServerPool) -> None:
    """Encodes, which skip a collective operation on both ranks, and generations, cold and cached, one by one."""
    one, two = servers(server_pool)
    expected = [vectors_of(one, prompt, tokens) for prompt in prompts() for tokens in (0, 4)]
    found = [vectors_of(two, prompt, tokens) for prompt in prompts() for tokens in (0, 4)]
    pairs = list(zip(found, expected, strict=True))
    least = min(cosine(a["embedding"], np.array(b["embedding"])) for a, b in pairs)
    rows = min(cosine(row, other) for a, b in pairs for row, other in zip(rows_of(a), rows_of(b), strict=True))
    print(f"\nMEASURED TP 2 against TP 1: least cosine of means {least:.6f}, of single rows {rows:.6f}")  # noqa: T201
    assert least >= LEAST_COSINE
    assert rows >= 0.999
    assert two.log.count("tessera: row store of") == 1


@pytest.mark.parametrize("mode", [{}, {"mode": "add"}, {"scale": "norm-matched"}])
def test_two_ranks_inject_as_one(server_pool: ServerPool, mode: dict[str, str]) -> None:
    """Each rank embeds a part of the vocabulary, and then the same vectors take their places on all."""
    one, two = servers(server_pool)
    pairs = []
    for number, prompt in enumerate(prompts()[4:]):
        overrides = overrides_of(number, len(prompt)) | mode
        plain = vectors_of(one, prompt, 4)
        # The second time behind a cached prefix.
        for _ in range(2):
            a = vectors_of(one, prompt, 4, input_embed_overrides=overrides)
            b = vectors_of(two, prompt, 4, input_embed_overrides=overrides)
            assert cosine(a["embedding"], np.array(plain["embedding"])) < LEAST_COSINE
            pairs.append((b, a))
    least = min(cosine(a["embedding"], np.array(b["embedding"])) for a, b in pairs)
    rows = min(cosine(row, other) for a, b in pairs for row, other in zip(rows_of(a), rows_of(b), strict=True))
    print(f"\nMEASURED injection {mode}, TP 2 against TP 1: means {least:.6f}, single rows {rows:.6f}")  # noqa: T201
    assert least >= LEAST_COSINE
    assert rows >= 0.999


def overrides_of(seed: int, length: int) -> dict[str, Any]:
    """Four vectors about as long as embeddings, in places of a prompt."""
    vectors = (np.random.default_rng(seed).standard_normal((4, 256)) / 16).astype("<f4")
    positions = sorted(random.Random(seed).sample(range(length), 4))
    embeds = base64.b64encode(vectors.tobytes()).decode()
    return {"positions": positions, "embeds": embeds, "shape": [4, 256], "dtype": "float32"}


def test_fingerprints_of_two_ranks(server_pool: ServerPool) -> None:
    """Either proves, the other verifies: 60 responses of 100 tokens each, in batches of 1, 8 and 32."""
    one, two = servers(server_pool)
    for prover, verifier in ((one, two), (two, one)):
        measured = check(verifier.url, ask(prover.url, 60, 100))
        worst = max(distance for response in measured for distance in response.distances)
        print(f"\nMEASURED fingerprints between TP 1 and TP 2: worst {worst}")  # noqa: T201
        assert accepted(measured, Thresholds()) == 60
