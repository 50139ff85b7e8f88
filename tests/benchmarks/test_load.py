"""What the benchmarks send: waves, and a closed loop, to a server of ours that has the clock.

They pass however slow the machine is. What waits for a request that does not come is an error after `PATIENCE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from load import Answer, Load, _summary, run, typical_latency

CLIENTS = 4
WAVES = 3
HELD = 3 * (CLIENTS - 1)
"""How many answers the others get before the first request has its own."""
PATIENCE = 20.0
"""Seconds that a request waits for others."""
EARLY = 0.02
"""Seconds in which a request would come that does not wait for the answers of others."""


class Clocked:
    """Answers when enough requests have come; its clock tells a second for each time that it waits for some.

    Attributes:
        now: seconds.
        frozen: how often it was told to keep its garbage collector quiet.
        events: "begin" and "end" of requests, in their order.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.frozen = 0
        self.events: list[str] = []
        self._changed = asyncio.Condition()

    def clock(self) -> float:
        """What the load takes for the time."""
        return self.now

    async def answer_together(self, request: web.Request) -> web.Response:
        """When all clients have sent one; and each a little after the other, so that a client may come too early."""
        number = await self._begun(request)
        last = number // CLIENTS * CLIENTS + CLIENTS
        await self._until(lambda: self.events.count("begin") >= last)
        self.now = last / CLIENTS
        await self._until(lambda: self.events.count("end") == number)
        await asyncio.sleep(EARLY)
        return await self._ended()

    async def answer_others(self, request: web.Request) -> web.Response:
        """The first request after `HELD` others; any other at once."""
        if await self._begun(request) == 0:
            await self._until(lambda: self.events.count("end") >= HELD)
        self.now += 1
        return await self._ended()

    async def answer(self, _: web.Request) -> web.Response:
        """At once."""
        return web.Response(text="{}")

    async def freeze(self, _: web.Request) -> web.Response:
        """SGLang's endpoint that keeps its garbage collector quiet."""
        self.frozen += 1
        return web.Response()

    async def _begun(self, request: web.Request) -> int:
        await request.read()
        self.events.append("begin")
        async with self._changed:
            self._changed.notify_all()
        return self.events.count("begin") - 1

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(holds)

    async def _ended(self) -> web.Response:
        self.events.append("end")
        async with self._changed:
            self._changed.notify_all()
        return web.Response(text="{}")


@pytest.fixture
def server() -> Clocked:
    """One for each test."""
    return Clocked()


def test_waves_do_not_overlap(server: Clocked, listen: Callable[[dict[str, Any]], str]) -> None:
    """Each begins when all requests of the one before have ended, and all of them count."""
    url = listen({"/generate": server.answer_together})
    found = run(url, Load(4, 2, CLIENTS, WAVES - 0.5), {}, seed=0, clock=server.clock)
    assert server.events == [*["begin"] * CLIENTS, *["end"] * CLIENTS] * WAVES
    assert (found.errors, found.latencies) == (0, (1.0,) * CLIENTS * WAVES)
    assert found.requests_per_second == CLIENTS


def test_a_request_counts_by_its_part_in_the_window() -> None:
    """Of two seconds: one request whole, one half before it, one half behind it."""
    answers = [Answer(1.0, 2.0, 10, b"", 200), Answer(-1.0, 1.0, 10, b"", 200), Answer(1.5, 2.5, 10, b"", 200)]
    found = _summary(Load(4, 3, clients=2, seconds=2.0), 0.0, 2.0, answers, stolen=0.0)
    assert found.requests_per_second == (1 + 0.5 + 0.5) / 2
    assert found.output_tokens_per_second == 3
    assert found.latencies == (1.0, 2.0)


def test_a_closed_loop_never_waits_for_others(server: Clocked, listen: Callable[[dict[str, Any]], str]) -> None:
    """Each client sends its next request when it has its answer, also while another one waits for its first."""
    url = listen({"/generate": server.answer_others})
    found = run(url, Load(4, 1, CLIENTS, HELD + 1), {}, seed=0, clock=server.clock)
    assert found.errors == 0
    assert server.events.count("begin") == server.events.count("end") > HELD


def test_the_typical_latency_is_of_one_request_of_each_client(
    server: Clocked, listen: Callable[[dict[str, Any]], str]
) -> None:
    """And what the server holds then is kept from its garbage collector."""
    url = listen({"/generate": server.answer, "/freeze_gc": server.freeze})
    assert typical_latency(url, Load(4, 1, CLIENTS, 1.0), {}) > 0
    assert server.frozen == 1
