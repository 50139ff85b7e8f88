"""A server of ours in the place of an inference server's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest
from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Listen = Callable[[Mapping[str, Answer]], str]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Serve POST requests to these paths until the test ends; returns the URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def serve(answers: Mapping[str, Answer]) -> str:
        return asyncio.run_coroutine_threadsafe(_start(answers), loop).result(timeout=5)

    yield serve
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=5)


async def _start(answers: Mapping[str, Answer]) -> str:
    app = web.Application()
    for path, answer in answers.items():
        app.router.add_post(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return site.name
