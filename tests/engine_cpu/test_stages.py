"""A model whose layers are split over two processes (``--pp-size``): the last stage keeps the rows and sends them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tessera.launching.server import Server
from tessera_testing.canary import canaries, fly_exactly
from tessera_testing.claims import prove_and_verify
from tessera_testing.drafts import code_and_noise, retracting
from tessera_testing.marks import host_cache_options, only_in_full
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.starts import STAGES_ON_CPUS
from tessera_testing.tiny import TINY

OPTIONS = ("--enable-return-hidden-states", "--pp-size", "2", "--chunked-prefill-size", "32")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with its output matrix written twice: SGLang's Llama has no tied one in the last of its stages."""
    folder = tmp_path_factory.mktemp("untied")
    shutil.copytree(TINY, folder, dirs_exist_ok=True)
    weights = load_file(TINY / "model.safetensors")
    outputs = weights["model.embed_tokens.weight"].clone()
    save_file({**weights, "lm_head.weight": outputs}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return folder


@pytest.fixture(params=["slots", *only_in_full("host")])
def staged(server_pool: ServerPool, untied: Path, request: pytest.FixtureRequest) -> Server:
    """Two stages, chunks of 32 tokens; requests are retracted again and again. Also with the host's memory."""
    return server_pool.get(
        *OPTIONS, *host_cache_options(request.param), model=untied, env=STAGES_ON_CPUS | retracting(7)
    )


def test_canaries(staged: Server, hf: HuggingFace) -> None:
    """Shared prefixes, every option, streams, and clients that leave half-way, 16 at once."""
    flock = canaries(100, vocabulary=1000, seed=13, leaving=0.1)
    fly_exactly(staged.url, flock, hf)


def test_fingerprints(staged: Server, hf: HuggingFace) -> None:
    """Honest ones verify; a claim with another's fails."""
    prove_and_verify(staged, code_and_noise(hf.tokenizer, seed=13))
