"""What the tests against the real engine compare with, and the servers that they share."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tessera.launching.server import Server
from tessera_testing import adapters
from tessera_testing.drafts import retracting
from tessera_testing.marks import absent
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY

HIDDEN = "--enable-return-hidden-states"


@pytest.fixture(scope="session")
def hf() -> HuggingFace:
    """The reference of the tiny model."""
    return HuggingFace(TINY)


@pytest.fixture(scope="session")
def records_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where SGLang's exporter of the strained server writes."""
    return tmp_path_factory.mktemp("records")


@pytest.fixture
def strained(server_pool: ServerPool, records_folder: Path) -> Server:
    """Chunks of 16 tokens, prefill mixed with decode, retraction again and again; float32.

    And what asks for no server of its own: metrics, records of each request, small limits, defaults of embeddings, the
    playground, sessions that keep their slots, two detokenizers where SGLang routes to them, rows kept as on the host.
    """
    return server_pool.get(
        HIDDEN,
        "--enable-injection",
        *("--injection-max-magnitude", "100"),
        *("--injection-max-megabytes", "4"),
        *("--answer-max-megabytes", "16"),
        *("--body-max-seconds", "8"),
        *("--chunked-prefill-size", "16"),
        "--enable-mixed-chunk",
        *("--enable-metrics", "--tessera-ui"),
        *("--export-metrics-to-file", "--export-metrics-to-file-dir", str(records_folder)),
        *("--embeddings-pooling", "last", "--embeddings-normalize", "--embeddings-dimensions", "8"),
        "--embeddings-text-only",
        *("--enable-streaming-session", "--rows-on-host"),
        *(() if absent("detokenizers") else ("--detokenizer-worker-num", "2")),
        env=retracting(3),
    )


@pytest.fixture
def bare(server_pool: ServerPool) -> Server:
    """A server with none of our options."""
    return server_pool.get()


@pytest.fixture
def stock(server_pool: ServerPool) -> Server:
    """SGLang without us."""
    return server_pool.get(HIDDEN, env={"TESSERA_DISABLE": "1"})


@pytest.fixture
def bf16(server_pool: ServerPool) -> Server:
    """The plain server in the model's own precision."""
    return server_pool.get(HIDDEN, "--dtype", "bfloat16")


@pytest.fixture
def fp16(server_pool: ServerPool) -> Server:
    """The plain server in the other half precision."""
    return server_pool.get(HIDDEN, "--dtype", "float16")


@pytest.fixture
def fingerprinting(server_pool: ServerPool) -> Server:
    """A server that fingerprints every response."""
    return server_pool.get("--toploc-verification", spawned=True)


@pytest.fixture(scope="session")
def lora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The adapters of `narrow`, by name."""
    return {name: adapters.make(tmp_path_factory.mktemp(name), seed) for seed, name in enumerate(("own", "other"))}


@pytest.fixture
def narrow(server_pool: ServerPool, lora: dict[str, Path]) -> Server:
    """A context of 64 tokens, to which longer prompts are cut; two adapters; our part of exact mode."""
    return server_pool.get(
        "--toploc-verification",
        "--enable-injection",
        *("--context-length", "64", "--allow-auto-truncate"),
        *("--enable-lora", "--lora-backend", "torch_native", "--lora-paths"),
        *(f"{name}={path}" for name, path in lora.items()),
        env={"TESSERA_TEST_FAULT": "unpinned pooling"},
    )


@pytest.fixture
def client(server: Server) -> httpx.Client:
    """A client of the plain server."""
    return httpx.Client(base_url=server.url, timeout=120)
