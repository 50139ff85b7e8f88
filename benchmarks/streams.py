"""How evenly streams come while another load runs beside them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import aiohttp

from load import FIRST_ID, Call, percentile

STREAMS = 16
CLIENTS = 8
"""With as many as prefill can take the stock server decodes nothing at all: it prefills first."""
PROMPT_TOKENS = 128
OUTPUT_TOKENS = 512
LAST_STREAM_ID = 900


def gaps(url: str, calls: Iterator[Call], requests: int, seed: int) -> dict[str, Any]:
    """Run 16 streams, and beside them so many requests of a load; gaps count only while the load runs.

    Args:
        url: of the server.
        calls: what the load sends, 8 at a time.
        requests: how many in all.
        seed: of the streams' random prompts.

    Returns:
        ``gap_p50``, ``gap_p99``, ``gap_most`` in seconds, ``gaps``, how many there were, and ``load_seconds``.
    """
    return asyncio.run(_gaps(url, calls, requests, seed))


async def _gaps(url: str, calls: Iterator[Call], requests: int, seed: int) -> dict[str, Any]:
    chooser = random.Random(seed)
    found: list[float] = []
    running = asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(_stream(session, url, chooser, found, running)) for _ in range(STREAMS)]
        await asyncio.sleep(1.0)  # until all of them decode
        running.set()
        begin = time.perf_counter()
        await _send(session, url, calls, requests)
        seconds = time.perf_counter() - begin
        running.clear()
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):  # CancelledError is none
                raise outcome
    p50, p99 = (round(percentile(found, share), 5) for share in (0.5, 0.99))
    return {
        "gap_p50": p50,
        "gap_p99": p99,
        "gap_most": round(max(found), 5),
        "gaps": len(found),
        "load_seconds": seconds,
    }


async def _stream(
    session: aiohttp.ClientSession, url: str, chooser: random.Random, found: list[float], running: asyncio.Event
) -> None:
    """One stream after the other, until it is cancelled."""
    while True:
        ids = [chooser.randrange(FIRST_ID, LAST_STREAM_ID) for _ in range(PROMPT_TOKENS)]
        sampling = {"max_new_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": sampling, "stream": True}
        last = None
        async with session.post(f"{url}/generate", json=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    if last is not None and running.is_set():
                        found.append(now - last)
                    last = now


async def _send(session: aiohttp.ClientSession, url: str, calls: Iterator[Call], requests: int) -> None:
    left = itertools.islice(calls, requests)

    async def client() -> None:
        for call in left:
            async with session.post(f"{url}{call.path}", json=call.body, headers=call.headers) as response:
                await response.read()
                assert response.status == HTTPStatus.OK, response.status

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
