"""Requests to a server in a window of time: in waves where tokens are decoded, in a closed loop where not.

One-token requests are bound by prefill, and run in a closed loop: so many clients, each sends its next request when the
last was answered; they start one after the other, and what counts is a window that begins when all are under way.

Where answers are decoded, a closed loop measures how they happen to fall together: requests that begin together share a
prefill, end together, and so do their successors, 39 requests/s; requests that begin alone take a prefill each, 23 to
28 of the same server, and how long the host takes to launch one decides. With answers of different lengths the latter
lasts, and windows of one server differ by 15 %. So all clients send at once, and again when all have their answers: a
batch of states that a search expands. Waves are all alike, and bound by the GPU.

Each window also says how much of the processors' time others had (`stolen`): on a host that is shared, the same load of
the same server gave 28 to 65 requests/s, and no ratio of such windows means anything.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp

from frozen import freeze
from processors import processor_time, stolen_since

FIRST_ID, LAST_ID = 5, 1000
"""Random prompts are made of these token ids: low ones exist in every vocabulary, that of the tiny model too."""
TRIES = 5
KEPT_BYTES = 2**20
"""Larger answers are counted and not kept."""
Clock = Callable[[], float]
"""Seconds since some moment."""


@dataclass(frozen=True, slots=True)
class Load:
    """``clients`` at a time send prompts of ``prompt_tokens`` and get ``output_tokens``, for ``seconds``."""

    prompt_tokens: int
    output_tokens: int
    clients: int
    seconds: float

    @property
    def in_waves(self) -> bool:
        """Whether all clients send together."""
        return self.output_tokens > 1

    def __str__(self) -> str:
        return f"{self.prompt_tokens} in, {self.output_tokens} out, {self.clients} clients"


class Call(NamedTuple):
    """One request: where it goes, what it says, and its headers. Bytes are sent as they are."""

    path: str
    body: dict[str, Any] | bytes
    headers: dict[str, str]


class Answer(NamedTuple):
    """One response: when it began and ended (seconds), its length, its body (empty if large), its status."""

    begin: float
    end: float
    length: int
    body: bytes
    status: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What came back in the window. Latencies in seconds, from sending a request to its last byte.

    `stolen` is the share of the processors' time that the hypervisor gave to others, 0 to 1. `bodies` are the answers
    that ended in the window.
    """

    requests_per_second: float
    output_tokens_per_second: float
    input_tokens_per_second: float
    p50: float
    p99: float
    kilobytes_per_response: float
    errors: int
    stolen: float
    latencies: tuple[float, ...]
    bodies: tuple[bytes, ...]

    def record(self, load: Load) -> dict[str, Any]:
        """Both as one flat dictionary, for a JSON line; without the single answers."""
        single = ("latencies", "bodies")
        return {name: value for name, value in (asdict(load) | asdict(self)).items() if name not in single}


def run(
    url: str,
    load: Load,
    extra: dict[str, Any],
    seed: int,
    request_seconds: float = 0.0,
    prompts: Iterator[list[int]] | None = None,
    calls: Iterator[Call] | None = None,
    clock: Clock = time.perf_counter,
) -> Measured:
    """Send one load to a server.

    Args:
        url: of the server.
        load: what to send.
        extra: goes into each request's body.
        seed: of the random prompts.
        request_seconds: about how long one request takes; in a closed loop clients start over this time, and the window
            begins after twice.
        prompts: token ids of the prompts to send instead of random ones; it never ends.
        calls: what to send instead of /generate with prompts; it never ends.
        clock: says when the window begins and ends, and how long requests take.
    """
    calls = calls or _generate(load, prompts or random_prompts(load, seed))
    return asyncio.run(_run(url, load, extra, calls, request_seconds, clock))


def typical_latency(
    url: str,
    load: Load,
    extra: dict[str, Any],
    prompts: Iterator[list[int]] | None = None,
    calls: Iterator[Call] | None = None,
) -> float:
    """The median latency when each client sends one request at once: what `run` wants to know, and a warm-up.

    What the server holds afterwards is kept from Python's garbage collector.
    """
    calls = calls or _generate(load, prompts or random_prompts(load, 0))
    answers = asyncio.run(_answers(url, load, extra, calls, until=time.perf_counter(), clock=time.perf_counter))
    freeze([url])
    return percentile([answer.end - answer.begin for answer in answers], 0.5)


Cases = dict[str, tuple[str, dict[str, Any]]]
"""What is compared, by name: the URL of a server, and what goes into each request's body."""


def warm_up(cases: Cases, load: Load, first_seed: int) -> float:
    """`typical_latency` of each case, with random prompts of its own seed: the longest."""
    return max(
        typical_latency(url, load, extra, random_prompts(load, seed))
        for seed, (url, extra) in enumerate(cases.values(), first_seed)
    )


def take_turns(cases: Cases, load: Load, rounds: int, request_seconds: float) -> Iterator[tuple[str, int, Measured]]:
    """Measure each case once a round, in a different order each round. Yields its name, the round and the result.

    No prompt is sent twice to a server: it would be cached. Several servers get the same ones, for with a mixture of
    experts a step takes as long as its tokens' experts are uneven.
    """
    names = list(cases)
    for number, name in turns(names, rounds):
        url, extra = cases[name]
        own = [other for other in names if cases[other][0] == url].index(name)
        yield name, number, run(url, load, extra, 100 + 10 * number + own, request_seconds)


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """The round and a name: each once a round, another one first each time."""
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            yield number, name


def percentile(latencies: Sequence[float], share: float) -> float:
    """The smallest latency that this share of all does not exceed."""
    ordered = sorted(latencies)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def random_prompts(load: Load, seed: int) -> Iterator[list[int]]:
    """Token ids of prompts, without end."""
    chooser = random.Random(seed)
    while True:
        yield [chooser.randrange(FIRST_ID, LAST_ID) for _ in range(load.prompt_tokens)]


def _generate(load: Load, prompts: Iterator[list[int]]) -> Iterator[Call]:
    for prompt in prompts:
        yield Call("/generate", {"input_ids": prompt, "sampling_params": sampling(load.output_tokens)}, {})


def sampling(tokens: int) -> dict[str, Any]:
    """So many tokens, whatever they are."""
    return {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}


async def _run(
    url: str, load: Load, extra: dict[str, Any], calls: Iterator[Call], request_seconds: float, clock: Clock
) -> Measured:
    before = processor_time()
    if load.in_waves:
        answers = await _answers(url, load, extra, calls, until=clock() + load.seconds, clock=clock)
        begin, end = min(answer.begin for answer in answers), max(answer.end for answer in answers)
    else:
        begin = clock() + 2 * request_seconds
        end = begin + load.seconds
        answers = await _answers(url, load, extra, calls, until=end, clock=clock, stagger=request_seconds)
    return _summary(load, begin, end, answers, stolen_since(before))


async def _answers(
    url: str,
    load: Load,
    extra: dict[str, Any],
    calls: Iterator[Call],
    until: float,
    clock: Clock,
    stagger: float = 0.0,
) -> list[Answer]:
    """In waves, or of clients that start one after the other over ``stagger`` seconds; at least one of each client."""
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        if load.in_waves:
            return await _waves(session, load.clients, extra, calls, until, clock)
        delays = (stagger * i / load.clients for i in range(load.clients))
        clients = (_client(session, extra, calls, delay, until, clock) for delay in delays)
        return [answer for group in await asyncio.gather(*clients) for answer in group]


async def _waves(
    session: aiohttp.ClientSession,
    clients: int,
    extra: dict[str, Any],
    calls: Iterator[Call],
    until: float,
    clock: Clock,
) -> list[Answer]:
    """At least one wave, and more until then. What the next one sends is made while the server works."""
    answers: list[Answer] = []
    sends = [prepared(next(calls), extra) for _ in range(clients)]
    while not answers or clock() < until:
        tasks = [asyncio.create_task(ask(session, *send, clock=clock)) for send in sends]
        await asyncio.sleep(0.05)  # until all are sent
        sends = [prepared(next(calls), extra) for _ in range(clients)]
        answers += await asyncio.gather(*tasks)
    return answers


async def _client(
    session: aiohttp.ClientSession,
    extra: dict[str, Any],
    calls: Iterator[Call],
    delay: float,
    until: float,
    clock: Clock,
) -> list[Answer]:
    """One client: at least one request, and more until then."""
    await asyncio.sleep(delay)
    answers: list[Answer] = []
    while not answers or clock() < until:
        answers.append(await ask(session, *prepared(next(calls), extra), clock=clock))
    return answers


Send = tuple[str, bytes, dict[str, str]]
"""A call as it is sent: path, body, headers."""


def prepared(call: Call, extra: dict[str, Any]) -> Send:
    """The call with `extra` in its body, encoded."""
    content = call.body if isinstance(call.body, bytes) else json.dumps(call.body | extra).encode()
    return call.path, content, {"content-type": "application/json", **call.headers}


async def ask(
    session: aiohttp.ClientSession,
    path: str,
    content: bytes,
    headers: dict[str, str],
    clock: Clock = time.perf_counter,
) -> Answer:
    """Send it and read the answer to its end."""
    begin = clock()
    raw, status = await _sent(session, path, content, headers)
    return Answer(begin, clock(), len(raw), raw if len(raw) <= KEPT_BYTES else b"", status)


async def _sent(session: aiohttp.ClientSession, url: str, content: bytes, headers: dict[str, str]) -> tuple[bytes, int]:
    """The answer's body and status. A server whose event loop writes lists for seconds cuts connections: send again."""
    tries = 1
    while True:
        try:
            async with session.post(url, data=content, headers=headers) as response:
                return await response.read(), response.status
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if tries == TRIES:
                raise
            tries += 1
            print(f"sent again: {error}", file=sys.stderr, flush=True)


def _summary(load: Load, begin: float, end: float, answers: list[Answer], stolen: float) -> Measured:
    # A request counts by the part of it that lies in the window, for whole requests come in lumps: 10 %, measured.
    parts = (max(min(a.end, end) - max(a.begin, begin), 0.0) / (a.end - a.begin) for a in answers)
    rate = sum(parts) / (end - begin)
    inside = [answer for answer in answers if begin <= answer.end <= end]
    if not inside:
        raise SystemExit(f"no request ended within the window of {load.seconds} s: make it longer")
    latencies = tuple(answer.end - answer.begin for answer in inside)
    return Measured(
        requests_per_second=round(rate, 3),
        output_tokens_per_second=round(rate * load.output_tokens, 1),
        input_tokens_per_second=round(rate * load.prompt_tokens, 1),
        p50=round(percentile(latencies, 0.5), 4),
        p99=round(percentile(latencies, 0.99), 4),
        kilobytes_per_response=round(sum(answer.length for answer in inside) / len(inside) / 1000, 2),
        errors=sum(answer.status != HTTPStatus.OK for answer in answers),
        stolen=stolen,
        latencies=latencies,
        bodies=tuple(answer.body for answer in inside),
    )


def load_of(text: str) -> Load:
    """PROMPT/OUTPUT/CLIENTS[/SECONDS], SECONDS by default 6."""
    prompt, output, clients, *seconds = text.split("/")
    return Load(int(prompt), int(output), int(clients), float(seconds[0]) if seconds else 6.0)
