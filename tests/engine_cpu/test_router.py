"""Behind SGLang's own router: it drops fields that it does not know, and no answer passes for what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import httpx
import numpy as np
import pytest

from tessera.cli import main
from tessera.client import AsyncClient, Client, HiddenStatesUnsupported, Injection, NotApplied, RequestRefused, connect
from tessera.launching.server import Server
from tessera_testing.injected import Matrix, replaced, vectors_of
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.router import router

FLOAT32_ERROR = 1e-5
TEXT = "def add(a, b):\n    return a + b\n"
POSITION = 3
VECTORS: Matrix = vectors_of(1, seed=19)


@pytest.fixture(scope="module")
def routers() -> Iterator[Callable[..., str]]:
    """The URL of a router over these servers; each is started once."""
    with ExitStack() as stack:
        yield cache(lambda *urls: stack.enter_context(router(*urls)))


@pytest.fixture
def behind(routers: Callable[..., str], forked: Server, injecting: Server) -> str:
    """A router over two servers, which take turns."""
    return routers(forked.url, injecting.url)


@pytest.fixture
def behind_one(routers: Callable[..., str], injecting: Server) -> str:
    """A router over the server that injects."""
    return routers(injecting.url)


def test_what_the_router_drops_is_an_error(behind: str) -> None:
    """Pooling, vectors, rows, fingerprints, options of the OpenAI route, and routes: each error names a proxy."""
    dropped: list[Callable[[Client], object]] = [
        lambda client: client.generate_with_embedding(TEXT, max_new_tokens=1),
        lambda client: client.generate_with_embedding(TEXT, max_new_tokens=1, pooling="median"),  # type: ignore[arg-type]
        lambda client: client.generate(TEXT, max_new_tokens=1, hidden_states=True),
        lambda client: client.generate(TEXT, max_new_tokens=1, fingerprints=True, nonce="n"),
    ]
    overlooked: list[Callable[[Client], object]] = [
        lambda client: client.generate(TEXT, max_new_tokens=1, inject=Injection(VECTORS, positions=[POSITION])),
        lambda client: list(client.stream(TEXT, max_new_tokens=1, inject=Injection(VECTORS, positions=[POSITION]))),
        lambda client: client.encode(TEXT, pooling="last"),
        lambda client: client.encode_batch([TEXT, "a"], normalize=True),
    ]
    with Client(behind) as client:
        for kind, calls in ((HiddenStatesUnsupported, dropped), (NotApplied, overlooked)):
            for call in calls:
                for _ in range(2):  # one for each server
                    with pytest.raises(kind, match="a proxy in front of the server"):
                        call(client)
        with pytest.raises(RequestRefused, match="proxy"):
            client.server_info()
        assert client.generate(TEXT, max_new_tokens=1).prompt_tokens > 0


def test_what_it_passes_on(behind: str, hf: HuggingFace) -> None:
    """Means and dimensions, by the client, sync or not."""
    ids = hf.tokenizer(TEXT)["input_ids"]
    expected = hf.pooled(ids, [], "mean", "prompt")

    async def embedded() -> Any:
        async with AsyncClient(behind) as client:
            return (await client.encode(ids)).numpy()

    with connect(behind) as client:
        for found in (client.encode(TEXT).numpy(), client.encode(TEXT).numpy(), asyncio.run(embedded())):
            assert relative_error(found, expected) <= FLOAT32_ERROR
        assert relative_error(client.encode(TEXT, dimensions=32).numpy(), expected[:32]) <= FLOAT32_ERROR


def test_the_way_through(behind: str, behind_one: str, hf: HuggingFace) -> None:
    """``/v1/completions`` keeps every field of a text prompt; the choice says what was applied."""
    ids = hf.tokenizer(TEXT)["input_ids"]
    body = {"model": "", "prompt": TEXT, "max_tokens": 1, "return_toploc_fingerprints": True, "toploc_nonce": "n"}
    body["return_embedding"] = {"pooling": "last", "normalize": True}
    for _ in range(2):  # one for each server
        choice = post(behind, body)
        last = hf.pooled(ids, [], "last", "prompt")
        assert relative_error(np.array(choice["embedding"]), last / np.linalg.norm(last)) <= FLOAT32_ERROR
        assert choice["embedding_options"] == {"pooling": "last", "over": "prompt", "normalize": True}
        assert (choice["toploc_nonce"], len(choice["toploc_verification_fingerprints"])) == ("n", 1)
        assert "injected" not in choice
    override = Injection(VECTORS, positions=[POSITION]).field()
    choice = post(behind_one, {**body, "return_embedding": True, "input_embed_overrides": override})
    expected = hf.edited(ids, replaced([POSITION], VECTORS)).mean(0)
    assert relative_error(np.array(choice["embedding"]), expected) <= FLOAT32_ERROR
    assert choice["injected"] == 1


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The choice that ``/v1/completions`` answers."""
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_check(behind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``tessera check``: the proxy is named, and no flag of the server is blamed."""
    assert main(["check", behind]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    generates a token")
    assert lines[1].startswith("FAIL  server")
    assert "no SGLang server but a proxy" in lines[1]
    failed = [line for line in lines if line.startswith("FAIL")]
    assert len(failed) == 6
    assert not any("--enable-return-hidden-states" in line for line in lines)
    assert any(line.startswith("ok    a batch") for line in lines)
