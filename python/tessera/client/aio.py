"""The client for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Self, TypeVar

import httpx

from tessera.client.calls import Call
from tessera.client.chunks import IN_FLIGHT
from tessera.client.core import Core
from tessera.client.http import Address, arguments, translated_errors
from tessera.client.options import Timeouts
from tessera.client.retry import Deadline, Retry
from tessera.client.status import Answer, check_status

Job = TypeVar("Job")
T = TypeVar("T")


class AsyncClient(Core):
    """A client of one server, for one event loop. `tessera.client.interface.Inference` describes its methods.

    Args:
        url: of the server, for example ``http://127.0.0.1:30000``.
        api_key: of a server that was started with ``--api-key``.
        timeouts: seconds for calls of each kind.
        retry: how failed calls are tried again.

    Raises:
        ValueError: no such URL or key can be.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, timeouts: Timeouts | None = None, retry: Retry | None = None
    ) -> None:
        super().__init__(url, timeouts, retry)
        self._http = httpx.AsyncClient(**Address(self.url, api_key).options())

    async def close(self) -> None:
        """See `Inference.close`."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _exchange(self, call: Call[Any], deadline: Deadline) -> Answer:
        with translated_errors(self.url, deadline):
            async with asyncio.timeout(deadline.left), aclosing(await self._send_request(call, deadline)) as response:
                return await _answer(response)

    async def _open(self, call: Call[Any], deadline: Deadline) -> httpx.Response:
        with translated_errors(self.url, deadline):
            async with asyncio.timeout(deadline.left):
                response = await self._send_request(call, deadline)
                if not response.is_success:
                    async with aclosing(response):
                        check_status(await _answer(response))
        return response

    async def _send_request(self, call: Call[Any], deadline: Deadline) -> httpx.Response:
        deadline.check()
        request = self._http.build_request(**arguments(call, deadline, self._timeouts))
        return await self._http.send(request, stream=True)

    async def _lines(self, opened: httpx.Response, deadline: Deadline) -> AsyncGenerator[str]:
        with translated_errors(self.url, deadline):
            async with aclosing(opened):
                lines = opened.aiter_lines()
                while True:
                    async with asyncio.timeout(deadline.left):
                        line = await anext(lines, None)
                    if line is None:
                        return
                    yield line

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _concurrently(self, job: Callable[[Job], Awaitable[T]], over: Iterable[Job]) -> AsyncGenerator[T]:
        turns = asyncio.Semaphore(IN_FLIGHT)

        async def one(item: Job) -> T:
            async with turns:
                return await job(item)

        tasks = [asyncio.ensure_future(one(item)) for item in over]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # or asyncio logs what nobody has awaited


async def _answer(response: httpx.Response) -> Answer:
    return Answer(response.status_code, response.headers, await response.aread())
