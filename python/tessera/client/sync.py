"""The client that waits: each method is a coroutine of `tessera.client.core.Core`, run to its end in this thread.

That needs no event loop, and no ``asyncio``: what the coroutines await blocks instead.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import closing
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import httpx

from tessera.client.calls import Call
from tessera.client.chunks import IN_FLIGHT
from tessera.client.core import Core
from tessera.client.http import Address, arguments, translated_errors
from tessera.client.options import GenerateOptions, Prompt, Timeouts
from tessera.client.results import Delta
from tessera.client.retry import Deadline, Retry
from tessera.client.status import Answer, check_status

Job = TypeVar("Job")
P = ParamSpec("P")
T = TypeVar("T")


def _finished(steps: Awaitable[T]) -> T:
    """The result of an awaitable that never waits for an event loop."""
    try:
        next(steps.__await__())
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("this waits for an event loop")


def _waiting(
    method: Callable[Concatenate[_Blocking, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The same method, which returns its result."""

    @wraps(method)
    def wait(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _finished(method(self._core, *args, **kwargs))

    return wait


class _Blocking(Core):
    """Coroutines that block the thread instead of waiting."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeouts: Timeouts | None,
        retry: Retry | None,
        transport: httpx.BaseTransport | None,
    ) -> None:
        super().__init__(url, timeouts, retry)
        self._http = httpx.Client(**Address(self.url, api_key).options(), transport=transport)

    async def close(self) -> None:
        """See `Inference.close`."""
        self._http.close()

    async def _exchange(self, call: Call[Any], deadline: Deadline) -> Answer:
        with translated_errors(self.url, deadline), closing(self._send_request(call, deadline)) as response:
            return _answer(response, deadline)

    async def _open(self, call: Call[Any], deadline: Deadline) -> httpx.Response:
        with translated_errors(self.url, deadline):
            response = self._send_request(call, deadline)
            if not response.is_success:
                with closing(response):
                    check_status(_answer(response, deadline))
        return response

    def _send_request(self, call: Call[Any], deadline: Deadline) -> httpx.Response:
        deadline.check()
        request = self._http.build_request(**arguments(call, deadline, self._timeouts))
        response = self._http.send(request, stream=True)
        # httpx would give the body as long as it gave the headers; what is left of the call's time is less.
        request.extensions["timeout"]["read"] = deadline.left
        return response

    async def _lines(self, opened: httpx.Response, deadline: Deadline) -> AsyncGenerator[str]:
        with translated_errors(self.url, deadline), closing(opened):
            for line in deadline.until_due(opened.iter_lines()):
                yield line

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs here

    async def _concurrently(self, job: Callable[[Job], Awaitable[T]], over: Iterable[Job]) -> AsyncGenerator[T]:
        from concurrent.futures import ThreadPoolExecutor, as_completed  # as slow to import as all of this client

        def run(item: Job) -> T:
            return _finished(job(item))

        pool = ThreadPoolExecutor(IN_FLIGHT, "tessera-encode")
        try:
            for future in as_completed([pool.submit(run, item) for item in over]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Client:
    """A client of one server. Its methods are described in `tessera.client.interface.Inference`; threads may share it.

    Args:
        url: of the server, for example ``http://127.0.0.1:30000``.
        api_key: of a server that was started with ``--api-key``.
        timeouts: seconds for calls of each kind.
        retry: how failed calls are tried again.
        transport: httpx's, instead of connections.

    Raises:
        ValueError: no such URL or key can be.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._core = _Blocking(url, api_key, timeouts, retry, transport)
        self.url = self._core.url

    generate = _waiting(_Blocking.generate)
    generate_with_embedding = _waiting(_Blocking.generate_with_embedding)
    chat = _waiting(_Blocking.chat)
    generate_candidates = _waiting(_Blocking.generate_candidates)
    generate_candidates_batch = _waiting(_Blocking.generate_candidates_batch)
    encode = _waiting(_Blocking.encode)
    encode_batch = _waiting(_Blocking.encode_batch)
    verify = _waiting(_Blocking.verify)
    health_check = _waiting(_Blocking.health_check)
    supports_hidden_states = _waiting(_Blocking.supports_hidden_states)
    server_info = _waiting(_Blocking.server_info)
    close = _waiting(_Blocking.close)

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Iterator[Delta]:
        """See `Inference.stream`."""
        return self._pieces(self._core.stream(prompt, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _pieces(self, stream: AsyncGenerator[Delta]) -> Iterator[Delta]:
        try:
            while (piece := _finished(anext(stream, None))) is not None:
                yield piece
        finally:
            _finished(stream.aclose())


def _answer(response: httpx.Response, deadline: Deadline) -> Answer:
    content = bytearray()
    for piece in deadline.until_due(response.iter_bytes()):
        content += piece
    return Answer(response.status_code, response.headers, content)
