"""Send hostile bodies to a server, good requests beside and after each few, and count what came back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx

from hostile.bodies import Hostile, hostile
from hostile.dropped import dropped
from tessera.client.http import CONNECTIONS

GOOD: dict[str, Any] = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
"""A request that is always answered, and always with the same tokens."""
_LONGEST = 120.0
"""Seconds for one answer: a request that is accepted may generate until the context is full."""
_EVERY = 1000


class ServerFailedError(Exception):
    """The good request was not answered, or not as before; the message says what came."""


@dataclass
class Report:
    """What came back.

    Attributes:
        answers: by route, how many of each status; ``cut`` is an answer that did not arrive, or not whole.
        faults: route, body and answer of each status of 500 and above, and of each answer that did not arrive.
        silent: route, body, and what was asked for and is not in the answer, whose status is 200.
        ended: the bodies that were under way when the server ended, or failed the good request.
    """

    answers: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults: list[tuple[str, str, str]] = field(default_factory=list)
    silent: list[tuple[str, str, str]] = field(default_factory=list)
    ended: list[tuple[str, list[Hostile]]] = field(default_factory=list)

    @property
    def bodies(self) -> int:
        """How many were sent."""
        return sum(counts.total() for counts in self.answers.values())

    @property
    def clean(self) -> bool:
        """Whether each was answered as it should be."""
        return not (self.faults or self.silent or self.ended)

    def lines(self) -> list[dict[str, Any]]:
        """One record for each route."""
        return [
            {"route": route, "bodies": counts.total(), **dict(sorted(counts.items()))}
            for route, counts in sorted(self.answers.items())
        ]


async def fuzz(
    url: str,
    seed: int,
    bodies: int,
    at_once: int = 8,
    say: Callable[[str], None] | None = None,
    report: Report | None = None,
) -> Report:
    """Send bodies together with `GOOD`, and `GOOD` again after every ``at_once`` of them.

    Args:
        url: of the server.
        seed: the same one sends the same bodies.
        bodies: how many.
        at_once: how many are under way together.
        say: told of progress.
        report: what came back is added to it.

    Raises:
        ServerFailedError: the server ended, or answers the good request otherwise than before. The report has what was
            under way.
    """
    chooser, report = random.Random(seed), report or Report()
    async with httpx.AsyncClient(base_url=url, timeout=_LONGEST, limits=CONNECTIONS) as client:
        right = await _good(client)
        for first in range(0, bodies, at_once):
            await together(client, [hostile(chooser) for _ in range(min(at_once, bodies - first))], report, right)
            if say is not None and first // _EVERY != (first + at_once) // _EVERY:
                say(f"{first + at_once} bodies, {len(report.faults)} faults, {len(report.silent)} silent")
    return report


async def together(client: httpx.AsyncClient, batch: Sequence[Hostile], report: Report, right: list[int]) -> None:
    """Some bodies beside a good request, and one good request after them.

    Raises:
        ServerFailedError: as `fuzz`.
    """
    try:
        beside, *_ = await asyncio.gather(_good(client), *(_send(client, one, report) for one in batch))
        after = await _good(client)
    except httpx.HTTPError as error:
        report.ended.append((repr(error), list(batch)))
        raise ServerFailedError(repr(error)) from error
    if [beside, after] != [right, right]:
        report.ended.append((f"{beside} beside and {after} after, not {right}", list(batch)))
        raise ServerFailedError(report.ended[-1][0])


async def _good(client: httpx.AsyncClient) -> list[int]:
    answer = (await client.post("/generate", json=GOOD)).raise_for_status()
    ids: list[int] = answer.json()["output_ids"]
    return ids


async def _send(client: httpx.AsyncClient, one: Hostile, report: Report) -> None:
    sent = (one.path, one.content.decode(errors="replace"))
    try:
        answer = await client.post(one.path, content=one.content, headers={"content-type": "application/json"})
    except httpx.HTTPError as error:
        report.answers[one.path]["cut"] += 1
        report.faults.append((*sent, repr(error)))
        return
    report.answers[one.path][str(answer.status_code)] += 1
    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        report.faults.append((*sent, answer.text[:300]))
    elif answer.status_code == HTTPStatus.OK and (missing := dropped(*sent, answer.text)):
        report.silent.append((*sent, missing))
