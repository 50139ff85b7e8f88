"""A steady closed loop of /generate requests: so many clients, each sends its next request when the last was answered.

Clients start one after the other over the time of one request: started at once they would run in lockstep, and how
their prefills happen to bunch then decides the result (a spread of 8 % was measured that way). What counts is a window
that begins when all are under way; a request that lies partly in it counts by that part, for whole requests come in
lumps (a spread of 10 % was measured that way).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp

FIRST_ID, LAST_ID = 5, 2000
"""Random prompts are made of these token ids: low ones exist in every vocabulary."""


@dataclass(frozen=True, slots=True)
class Load:
    """``clients`` at a time send prompts of ``prompt_tokens`` and get ``output_tokens`` each, for ``seconds``."""

    prompt_tokens: int
    output_tokens: int
    clients: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.prompt_tokens} in, {self.output_tokens} out, {self.clients} clients"


class Answer(NamedTuple):
    """One response: when it began and ended (seconds), its size in bytes, its status."""

    begin: float
    end: float
    size: int
    status: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What came back in the window. Latencies in seconds, from sending a request to its last byte."""

    requests_per_second: float
    output_tokens_per_second: float
    input_tokens_per_second: float
    p50: float
    p99: float
    kilobytes_per_response: float
    errors: int
    latencies: tuple[float, ...]

    def record(self, load: Load) -> dict[str, Any]:
        """Both as one flat dictionary, for a JSON line; without the single latencies."""
        return {name: value for name, value in (asdict(load) | asdict(self)).items() if name != "latencies"}


def run(url: str, load: Load, extra: dict[str, Any], seed: int, request_seconds: float = 0.0) -> Measured:
    """Send one load to a server.

    Args:
        url: of the server.
        load: what to send.
        extra: goes into each request's body.
        seed: of the random prompts.
        request_seconds: about how long one request takes; clients start over this time, the window begins after twice.
    """
    return asyncio.run(_run(url, load, extra, seed, request_seconds))


def percentile(latencies: Sequence[float], share: float) -> float:
    """The smallest latency that this share of all does not exceed."""
    ordered = sorted(latencies)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


async def _run(url: str, load: Load, extra: dict[str, Any], seed: int, request_seconds: float) -> Measured:
    chooser = random.Random(seed)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        begin = time.perf_counter() + 2 * request_seconds
        clients = (
            _client(session, url, load, extra, chooser, request_seconds * i / load.clients, begin + load.seconds)
            for i in range(load.clients)
        )
        answers = [answer for group in await asyncio.gather(*clients) for answer in group]
    return _summary(load, begin, answers)


async def _client(
    session: aiohttp.ClientSession,
    url: str,
    load: Load,
    extra: dict[str, Any],
    chooser: random.Random,
    delay: float,
    until: float,
) -> list[Answer]:
    await asyncio.sleep(delay)
    answers = []
    while (begin := time.perf_counter()) < until:
        async with session.post(f"{url}/generate", json=_body(chooser, load) | extra) as response:
            raw = await response.read()
        end = time.perf_counter()
        answers.append(Answer(begin, end, len(raw), response.status))
    return answers


def _body(chooser: random.Random, load: Load) -> dict[str, Any]:
    ids = [chooser.randrange(FIRST_ID, LAST_ID) for _ in range(load.prompt_tokens)]
    return {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": load.output_tokens, "temperature": 0, "ignore_eos": True},
    }


def _summary(load: Load, begin: float, answers: list[Answer]) -> Measured:
    end = begin + load.seconds
    parts = ((min(a.end, end) - max(a.begin, begin)) / (a.end - a.begin) for a in answers)
    rate = sum(max(part, 0.0) for part in parts) / load.seconds
    inside = [answer for answer in answers if begin <= answer.end < end]
    latencies = tuple(answer.end - answer.begin for answer in inside)
    return Measured(
        requests_per_second=round(rate, 3),
        output_tokens_per_second=round(rate * load.output_tokens, 1),
        input_tokens_per_second=round(rate * load.prompt_tokens, 1),
        p50=round(percentile(latencies, 0.5), 4),
        p99=round(percentile(latencies, 0.99), 4),
        kilobytes_per_response=round(sum(answer.size for answer in inside) / len(inside) / 1000, 2),
        errors=sum(answer.status != HTTPStatus.OK for answer in answers),
        latencies=latencies,
    )
