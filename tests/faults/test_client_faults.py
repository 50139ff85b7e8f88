"""The client in front of a server or a network that fails: the documented exception, in time, and nothing partial."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tessera.client import (
    AsyncClient,
    Client,
    ClientError,
    ConnectionFailed,
    Delta,
    InvalidResponse,
    RateLimited,
    RequestRefused,
    RequestTimeout,
    Retry,
    ServerError,
    Timeouts,
    Unauthorized,
)
from tessera.launching.server import Server
from tessera_testing import unreliable
from tessera_testing.free_port import free_port
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.tiny import TINY
from tessera_testing.unreliable import Answered, Fault, UnreliableProxy, cut_within, rewritten, status, truncated
from tessera_testing.waiting import wait_until

HIDDEN = "--enable-return-hidden-states"
FLOAT32_ERROR = 1e-5
QUICK = Retry(first=0.02)
TEXT = "def add(a, b):\n    return a + b\n"
HANGS = pytest.mark.timeout(60)
"""Calls of half a second that are still waiting by then hang."""

Run = Callable[..., Any]
"""Calls a method of a client by its name, and waits for the result."""


@pytest.fixture(scope="module")
def hf() -> HuggingFace:
    """The reference of the tiny model."""
    return HuggingFace(TINY)


@pytest.fixture
def proxy(server: Server) -> Iterator[UnreliableProxy]:
    """In front of it."""
    with UnreliableProxy(server.url) as proxy:
        yield proxy


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, proxy: UnreliableProxy) -> Run:
    """Each client in turn, in front of the proxy."""

    def sync(
        method: str, *arguments: Any, timeouts: Timeouts | None = None, retry: Retry = QUICK, **options: Any
    ) -> Any:
        with Client(proxy.url, timeouts=timeouts, retry=retry) as client:
            return getattr(client, method)(*arguments, **options)

    def coroutine(
        method: str, *arguments: Any, timeouts: Timeouts | None = None, retry: Retry = QUICK, **options: Any
    ) -> Any:
        async def call() -> Any:
            async with AsyncClient(proxy.url, timeouts=timeouts, retry=retry) as client:
                return await getattr(client, method)(*arguments, **options)

        return asyncio.run(call())

    return sync if request.param == "sync" else coroutine


@pytest.fixture(autouse=True)
def next_request_is_right(proxy: UnreliableProxy, hf: HuggingFace) -> Iterator[None]:
    """After every fault."""
    yield
    with Client(proxy.url) as client:
        found = client.encode(TEXT).numpy()
    assert relative_error(found, hf.pooled(hf.tokenizer(TEXT)["input_ids"], [], "mean", "prompt")) <= FLOAT32_ERROR


@pytest.mark.parametrize(
    "fault",
    [status(500), status(503), status(429), unreliable.cut_before, cut_within(0.0), cut_within(0.5)],
    ids=["500", "503", "429", "no answer", "no body", "half a body"],
)
def test_passing_faults(run: Run, proxy: UnreliableProxy, hf: HuggingFace, fault: Fault) -> None:
    """Three times in a row, and the fourth try brings the whole, right result."""
    proxy.next(fault, fault, fault)
    found = run("encode_batch", [TEXT, TEXT + "#"]).numpy()
    assert proxy.taken() == 4
    assert relative_error(found[0], hf.pooled(hf.tokenizer(TEXT)["input_ids"], [], "mean", "prompt")) <= FLOAT32_ERROR


@pytest.mark.parametrize(
    ("fault", "kind", "tries"),
    [
        (status(500, b"Internal Server Error"), ServerError, 4),
        (status(503), ServerError, 4),
        (status(429), RateLimited, 4),
        (unreliable.cut_before, ConnectionFailed, 4),
        (cut_within(0.5), ConnectionFailed, 4),
        (status(400), RequestRefused, 1),
        (status(404, b'{"detail":"Not Found"}'), RequestRefused, 1),
        (status(401, b'{"error":"Unauthorized"}'), Unauthorized, 1),
        (truncated(0.5), InvalidResponse, 1),
        (truncated(0.0), InvalidResponse, 1),
        (status(200, b"<html>a portal</html>"), InvalidResponse, 1),
    ],
)
@pytest.mark.parametrize(
    ("method", "arguments"), [("generate", ("a",)), ("generate_candidates_batch", (["a", "b"], 2))]
)
def test_lasting_faults(
    run: Run,
    proxy: UnreliableProxy,
    fault: Fault,
    kind: type[ClientError],
    tries: int,
    method: str,
    arguments: tuple[Any, ...],
) -> None:
    """Each its exception; what another try cannot help is not tried again."""
    with proxy.always(fault), pytest.raises(ClientError) as raised:
        run(method, *arguments, max_new_tokens=2)
    assert type(raised.value) is kind
    assert proxy.taken() == tries


def test_retry_after(run: Run, proxy: UnreliableProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's pause instead of the client's; and none that would outlast the call."""
    pauses: list[float] = []

    async def pause(_client: object, seconds: float) -> None:
        pauses.append(seconds)

    for client in ("sync._Blocking", "aio.AsyncClient"):
        monkeypatch.setattr(f"tessera.client.{client}._pause", pause)
    proxy.next(status(429, retry_after="1"))
    run("encode", TEXT)
    assert pauses == [1.0]
    proxy.next(status(503, retry_after="60"))
    with pytest.raises(ServerError):
        run("encode", TEXT, timeouts=Timeouts(request=5.0))


@HANGS
@pytest.mark.parametrize("fault", [unreliable.hang, unreliable.hang_within, unreliable.drip, unreliable.delayed(90)])
@pytest.mark.parametrize(("method", "arguments"), [("generate", ("a",)), ("encode_batch", ([TEXT],))])
def test_nothing_hangs(run: Run, proxy: UnreliableProxy, fault: Fault, method: str, arguments: tuple[Any, ...]) -> None:
    """Silence from the start, silence within, and an answer that comes byte by byte: all end with the call's time."""
    with proxy.always(fault), pytest.raises(RequestTimeout, match=r"took longer than 0\.5 s"):
        run(method, *arguments, timeouts=Timeouts(request=0.5, batch=0.5))


@HANGS
def test_tries_share_the_time(run: Run, proxy: UnreliableProxy) -> None:
    """A call that is tried again has no more time for it."""
    proxy.next(status(503), status(503))
    with proxy.always(unreliable.hang), pytest.raises(RequestTimeout):
        run("generate", "a", timeout=0.5)


def one_less(answer: Answered) -> Answered:
    """A batch without its last item, and otherwise whole."""
    if "x-tessera-shape" in answer.headers:
        rows, width = map(int, answer.headers["x-tessera-shape"].split(","))
        headers = answer.headers | {"x-tessera-shape": f"{rows - 1},{width}"}
        return Answered(answer.status, headers, answer.body[: -4 * width])
    return answer._replace(body=json.dumps(json.loads(answer.body)[:-1]).encode())


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("generate_candidates_batch", (["a", "b"], 2)), ("encode_batch", ([TEXT, "b"],)), ("encode", (TEXT,))],
)
def test_a_batch_of_another_length(run: Run, proxy: UnreliableProxy, method: str, arguments: tuple[Any, ...]) -> None:
    """Nothing of it is returned, for it cannot be known which item is missing."""
    proxy.next(rewritten(one_less))
    with pytest.raises(InvalidResponse, match="none of"):
        run(method, *arguments)
    assert proxy.taken() == 1


@HANGS
def test_one_chunk_of_many_fails(run: Run, proxy: UnreliableProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole call fails, and does not wait for chunks that hang."""
    monkeypatch.setattr("tessera.client.chunks.CHUNK", 2)
    proxy.next(unreliable.passed, status(400, b'{"error": {"message": "no", "code": "bad_request"}}'), unreliable.hang)
    with pytest.raises(RequestRefused, match="no"):
        run("encode_batch", [TEXT] * 9, timeouts=Timeouts(batch=90.0))


@HANGS
def test_nothing_listens(run: Run, proxy: UnreliableProxy) -> None:
    """The health check says so at once, others after their tries."""
    with Client(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(ConnectionFailed, match="tessera serve"):
        client.health_check()
    with proxy.always(status(503)), pytest.raises(ServerError):
        run("health_check")
    assert proxy.taken() == 1


def test_a_stream_that_breaks(proxy: UnreliableProxy) -> None:
    """Before its first piece it is begun anew; after that the error says that the text is not whole."""
    with Client(proxy.url, retry=QUICK) as client:
        proxy.next(status(503), unreliable.cut_before)
        assert [*client.stream(TEXT, max_new_tokens=4, ignore_eos=True)][-1].final is not None
        assert proxy.taken() == 3
        for fault in (cut_within(0.5), truncated(0.5)):
            proxy.next(fault)
            pieces: list[Delta] = []
            with pytest.raises((ConnectionFailed, InvalidResponse)):
                pieces.extend(client.stream(TEXT, max_new_tokens=20, ignore_eos=True))
            assert proxy.taken() == 1
        proxy.next(unreliable.hang)
        with pytest.raises(RequestTimeout):
            [*client.stream(TEXT, timeout=0.5)]


def long_batch(url: str, retry: Retry) -> Any:
    """Candidates that take longer than the test waits before it breaks something."""
    with Client(url, retry=retry) as client:
        return client.generate_candidates_batch([TEXT, "import os"], 4, max_new_tokens=400, ignore_eos=True)


def wait_until_running(url: str, requests: int) -> None:
    """Until the server decodes so many."""

    def running() -> int:
        loads = httpx.get(f"{url}/v1/loads", params={"include": "core"}, timeout=30).json()["loads"]
        return sum(load["num_running_reqs"] for load in loads)

    wait_until(lambda: running() >= requests)


def test_an_aborted_batch_is_no_result(server: Server, proxy: UnreliableProxy) -> None:
    """What an operator aborts comes back with status 200 and half of its text."""
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(long_batch, server.url, Retry(times=0))
        wait_until_running(server.url, 8)
        httpx.post(f"{server.url}/abort_request", json={"abort_all": True}, timeout=30).raise_for_status()
        with pytest.raises(ServerError, match="abort"):
            batch.result(timeout=60)


@pytest.mark.full
def test_killed_in_mid_batch(server_pool: ServerPool, server: Server, proxy: UnreliableProxy) -> None:
    """Who does not retry gets an error at once; who does gets the whole result from the server that comes back."""
    patient = Retry(times=1000, first=0.2, longest=1.0)
    with ThreadPoolExecutor(2) as pool:
        impatient = pool.submit(long_batch, server.url, Retry(times=0))
        waiting = pool.submit(long_batch, proxy.url, patient)
        wait_until_running(server.url, 16)
        os.killpg(server.pid, signal.SIGKILL)
        with pytest.raises(ConnectionFailed):
            impatient.result(timeout=10)
        assert not waiting.done()
        wait_until(lambda: server.exit_code is not None)
        assert not list(Path(tempfile.gettempdir()).glob(f"tessera-{server.pid}-*"))
        proxy.target = server_pool.get(HIDDEN, spawned=True).url
        groups = waiting.result(timeout=120)
    assert [len(group) for group in groups] == [4, 4]
    assert all(len(candidate.output_ids) == 400 for group in groups for candidate in group)
