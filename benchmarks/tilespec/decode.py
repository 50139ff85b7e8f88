"""How fast a server decodes for so many requests at a time, and nothing but that.

In a closed loop prefills come between the decode steps, as answers happen to end, and each takes tens of milliseconds
of the host's time: the same server gave 39 to 46 requests/s in windows of 4 s. So all requests of a wave begin
together, and what counts is the time from the last one's first tokens until they have so many tokens on average: all
decode then, none waits. Then the wave is aborted.

The average is the same for every setting, because drafts get better as a text goes on: of hard prompts 3.1 of 7 draft
tokens are accepted after four steps and 4.5 after sixteen. A window that ends with the first answer, as it was until
2026-11-25, ends earlier where drafts are longer, and has the worse part of all other texts.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
import numpy as np

STREAM_INTERVAL = 8
"""An event when a length is 1 more than a multiple of this: a server's process for events keeps up with 128 streams."""
ROOM = 3
"""A request may have so many times the tokens that count on average. Where one ends before that, so does the window."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """``waves`` of ``clients`` requests at a time, each until they have ``tokens`` on average."""

    clients: int
    tokens: int
    temperature: float
    waves: int


class Decoded(NamedTuple):
    """Of all waves: tokens and seconds while all decoded, and the last ``meta_info`` of each request."""

    tokens: float
    seconds: float
    metas: list[dict[str, Any]]


class Stream(NamedTuple):
    """One request: when events came (seconds), how many tokens it had then, and its last ``meta_info``."""

    times: list[float]
    lengths: list[int]
    meta: dict[str, Any]


def decode(url: str, load: Decoding, prompts: Iterator[list[int]]) -> Decoded:
    """Send all waves, and measure.

    Raises:
        RuntimeError: a request failed, or in no wave all requests decoded at the same time.
    """
    found = send(url, load, prompts)
    if not found.seconds:
        raise RuntimeError(f"of {load.clients} requests of {load.tokens} tokens the first ended before the last began")
    return found


def send(url: str, load: Decoding, prompts: Iterator[list[int]]) -> Decoded:
    """Send all waves, to warm up; the prefix cache is emptied before each.

    Raises:
        RuntimeError: a request failed.
    """
    return asyncio.run(_send(url, load, prompts))


async def _send(url: str, load: Decoding, prompts: Iterator[list[int]]) -> Decoded:
    tokens = seconds = 0.0
    metas: list[dict[str, Any]] = []
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in range(load.waves):
            (await session.post("/flush_cache?timeout=30")).raise_for_status()
            streams = await _wave(session, load, prompts)
            metas += [stream.meta for stream in streams]
            more, longer = together(streams, load.tokens)
            tokens, seconds = tokens + more, seconds + longer
    return Decoded(tokens, seconds, metas)


async def _wave(session: aiohttp.ClientSession, load: Decoding, prompts: Iterator[list[int]]) -> list[Stream]:
    """All requests of a wave, aborted once they have enough tokens together."""
    streams = [Stream([], [], {}) for _ in range(load.clients)]
    aborted = False

    async def follow(stream: Stream, prompt: list[int]) -> None:
        nonlocal aborted
        async for now, meta in _events(session, prompt, load):
            stream.times.append(now)
            stream.lengths.append(meta["completion_tokens"])
            stream.meta.update(meta)
            if not aborted and sum(one.lengths[-1] for one in streams if one.lengths) >= load.clients * load.tokens:
                aborted = True
                (await session.post("/abort_request", json={"abort_all": True})).raise_for_status()

    await asyncio.gather(*(follow(stream, next(prompts)) for stream in streams))
    return streams


async def _events(
    session: aiohttp.ClientSession, prompt: list[int], load: Decoding
) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """Ask: when each event comes (seconds), and its ``meta_info``."""
    sampling = {"max_new_tokens": ROOM * load.tokens, "temperature": load.temperature, "ignore_eos": True}
    sampling["stream_interval"] = STREAM_INTERVAL
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
    async with session.post("/generate", json=body) as response:
        if response.status != HTTPStatus.OK:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                yield now, event["meta_info"]


def together(streams: list[Stream], tokens: int) -> tuple[float, float]:
    """Tokens of all, and seconds, from the last one's first event until they have ``tokens`` on average.

    Or until the first one ends, if that comes before. Between events lengths grow evenly.
    """
    begin = max(stream.times[0] for stream in streams)
    first_end = min(stream.times[-1] for stream in streams)
    moments = np.unique(np.concatenate([stream.times for stream in streams]))
    totals = np.sum([np.interp(moments, stream.times, stream.lengths) for stream in streams], axis=0)
    end = min(float(np.interp(len(streams) * tokens, totals, moments)), first_end)
    if end <= begin:
        return 0.0, 0.0
    grown = np.diff(np.interp((begin, end), moments, totals))
    return float(grown[0]), end - begin
