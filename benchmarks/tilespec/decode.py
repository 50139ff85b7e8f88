"""How fast a server decodes for so many requests at a time, and nothing but that.

In a closed loop prefills come between the decode steps, as answers happen to end, and each takes tens of milliseconds
of the host's time: the same server gave 39 to 46 requests/s in windows of 4 s. So all requests of a wave begin
together, and what counts is the time from the first step that all of them were in until they have so many tokens on
average: all decode then, none waits. Then the wave is aborted.

The average is the same for every setting, because drafts get better as a text goes on: of hard prompts 3.1 of 7 draft
tokens are accepted after four steps and 4.5 after sixteen. A window that ended with the first answer, as it was before
2026-11-25, ended earlier where drafts are longer, and had the worse part of all other texts.

Steps and tokens are those that the server's scheduler has noted (`progress.py`). Lengths in streamed events, which
were used before, were up to 18 % wrong where events are rare (`docs/design/log/2026-11-25.md`, evening).
"""

import asyncio
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import numpy.typing as npt

from tilespec.progress import Progress

ROOM = 3
"""A request may have so many times the tokens that count on average. Where one ends before that, so does the window."""
_POLL_SECONDS = 0.002


class Place(NamedTuple):
    """A server of the rig."""

    url: str
    progress: Path
    """What its scheduler notes."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """``waves`` of ``clients`` requests at a time, each until they have ``tokens`` on average."""

    clients: int
    tokens: int
    temperature: float
    waves: int


class Window(NamedTuple):
    """What all requests of a wave did together."""

    tokens: float
    seconds: float
    steps: float
    launch: float
    """Seconds of the scheduler's thread in which it launched a step, the median."""
    process: float
    """The same of processing an outcome."""
    thread: float
    """The mean of both together: in one step of several the policy looks, and medians do not see that."""


class Decoded(NamedTuple):
    """Each wave, and the ``meta_info`` of each request."""

    windows: list[Window]
    metas: list[dict[str, Any]]

    @property
    def tokens(self) -> float:
        """Of all waves."""
        return sum(wave.tokens for wave in self.windows)

    @property
    def seconds(self) -> float:
        """Of all waves."""
        return sum(wave.seconds for wave in self.windows)

    @property
    def steps(self) -> float:
        """Of all waves."""
        return sum(wave.steps for wave in self.windows)

    @property
    def launch(self) -> float:
        """Seconds of the scheduler's thread for the launch of a step: the median of the waves'."""
        return statistics.median(wave.launch for wave in self.windows if wave.seconds)


def decode(place: Place, load: Decoding, prompts: Iterator[list[int]]) -> Decoded:
    """Send all waves, and measure.

    Raises:
        RuntimeError: a request failed, or in no wave all requests decoded at the same time.
    """
    found = send(place, load, prompts)
    if not found.seconds:
        raise RuntimeError(f"of {load.clients} requests of {load.tokens} tokens the first ended before the last began")
    return found


def send(place: Place, load: Decoding, prompts: Iterator[list[int]]) -> Decoded:
    """Send all waves, to warm up; the prefix cache is emptied before each.

    Raises:
        RuntimeError: a request failed.
    """
    return asyncio.run(_send(place, load, prompts))


async def _send(place: Place, load: Decoding, prompts: Iterator[list[int]]) -> Decoded:
    windows: list[Window] = []
    metas: list[dict[str, Any]] = []
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(place.url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in range(load.waves):
            (await session.post("/flush_cache?timeout=30")).raise_for_status()
            rows, found = await _wave(session, Progress(place.progress), load, prompts)
            windows.append(together(rows, load))
            metas += found
    return Decoded(windows, metas)


async def _wave(
    session: aiohttp.ClientSession, progress: Progress, load: Decoding, prompts: Iterator[list[int]]
) -> tuple[npt.NDArray[np.void], list[dict[str, Any]]]:
    """The steps and the ``meta_info`` of a wave, aborted once its requests have enough tokens together."""
    answers = asyncio.gather(*(_ask(session, next(prompts), load) for _ in range(load.clients)))
    rows = progress.receive()
    while not answers.done():
        rows = np.concatenate([rows, progress.receive()])
        if _enough(rows, load):
            (await session.post("/abort_request", json={"abort_all": True})).raise_for_status()
            break
        await asyncio.sleep(_POLL_SECONDS)
    metas = await answers
    return np.concatenate([rows, progress.receive()]), metas


async def _ask(session: aiohttp.ClientSession, prompt: list[int], load: Decoding) -> dict[str, Any]:
    """The ``meta_info`` of the answer, aborted or not."""
    sampling = {"max_new_tokens": ROOM * load.tokens, "temperature": load.temperature, "ignore_eos": True}
    async with session.post("/generate", json={"input_ids": prompt, "sampling_params": sampling}) as response:
        if response.status != HTTPStatus.OK:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        meta: dict[str, Any] = (await response.json())["meta_info"]
        return meta


def _enough(rows: npt.NDArray[np.void], load: Decoding) -> bool:
    return bool((_of_all(rows, load)["tokens"] >= load.clients * load.tokens).any())


def _of_all(rows: npt.NDArray[np.void], load: Decoding) -> npt.NDArray[np.void]:
    """The steps that all requests were in: no request joins later, and the first one that ends is the end."""
    of_all: npt.NDArray[np.void] = rows[rows["requests"] == load.clients]
    return of_all


def together(rows: npt.NDArray[np.void], load: Decoding) -> Window:
    """What came after the first step that all requests were in, until they have enough tokens on average.

    Or until one of them ends, if that comes before. The step that passes the goal counts in part.
    """
    steps = _of_all(rows, load)
    if len(steps) < 2:
        return Window(*[0.0] * len(Window._fields))
    end = min(load.clients * load.tokens, float(steps["tokens"][-1]))
    seconds = np.interp(end, steps["tokens"], steps["seconds"]) - steps["seconds"][0]
    number = np.interp(end, steps["tokens"], np.arange(len(steps)))
    launch, process = (float(np.median(steps[name])) for name in ("launch", "process"))
    thread = float((steps["launch"] + steps["process"])[1:].mean())  # the first one follows a prefill
    return Window(end - float(steps["tokens"][0]), float(seconds), float(number), launch, process, thread)
