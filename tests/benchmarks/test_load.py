"""What the benchmarks send: waves, and a closed loop, to a server of ours that notes when requests come and go."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from load import Answer, Load, _summary, run, typical_latency

SECONDS = 0.05


class Sleepy:
    """Answers after a while, each request a little later than the one before."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self.frozen = 0
        self._number = itertools.count()

    async def answer(self, request: web.Request) -> web.Response:
        """`SECONDS`, and up to 30 ms more."""
        begin = time.perf_counter()
        await request.read()
        await asyncio.sleep(SECONDS + next(self._number) % 4 * 0.01)
        self.spans.append((begin, time.perf_counter()))
        return web.Response(text="{}")

    async def freeze(self, _: web.Request) -> web.Response:
        """SGLang's endpoint that keeps its garbage collector quiet."""
        self.frozen += 1
        return web.Response()


@pytest.fixture
def sleepy(listen: Callable[[dict[str, Any]], str]) -> tuple[Sleepy, str]:
    """The server and its URL."""
    server = Sleepy()
    return server, listen({"/generate": server.answer, "/freeze_gc": server.freeze})


def test_waves_do_not_overlap(sleepy: tuple[Sleepy, str]) -> None:
    """Each begins when all requests of the one before have ended, and all of them count."""
    server, url = sleepy
    found = run(url, Load(4, 2, clients=4, seconds=0.3), {}, seed=0)
    waves = [server.spans[i : i + 4] for i in range(0, len(server.spans), 4)]
    assert len(waves) >= 2
    assert all(len(wave) == 4 for wave in waves)
    for before, after in itertools.pairwise(waves):
        assert max(end for _, end in before) <= min(begin for begin, _ in after)
    assert len(found.latencies) == len(server.spans)


def test_a_request_counts_by_its_part_in_the_window() -> None:
    """Of two seconds: one request whole, one half before it, one half behind it."""
    answers = [Answer(1.0, 2.0, 10, b"", 200), Answer(-1.0, 1.0, 10, b"", 200), Answer(1.5, 2.5, 10, b"", 200)]
    found = _summary(Load(4, 3, clients=2, seconds=2.0), 0.0, 2.0, answers, stolen=0.0)
    assert found.requests_per_second == (1 + 0.5 + 0.5) / 2
    assert found.output_tokens_per_second == 3
    assert found.latencies == (1.0, 2.0)


def test_a_closed_loop_never_waits_for_others(sleepy: tuple[Sleepy, str]) -> None:
    """Each client sends its next request when it has its answer: four are under way all the time."""
    server, url = sleepy
    load = Load(4, 1, clients=4, seconds=0.5)
    run(url, load, {}, seed=0, request_seconds=typical_latency(url, load, {}))
    assert server.frozen == 1
    ordered = sorted(server.spans[4:])
    assert any(later[0] < earlier[1] < later[1] for earlier, later in itertools.pairwise(ordered))
