"""Send hostile bodies to a server, a good request after each few, and count what came back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx

from tessera.testing.hostile_bodies import Hostile, hostile

GOOD: dict[str, Any] = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
"""A request that is always answered, and always with the same tokens."""
_LONGEST = 120.0
"""Seconds for one answer: a request that is accepted may generate until the context is full."""


class ServerFailedError(Exception):
    """The good request was not answered, or not as before; the message has the bodies that were sent just before."""


@dataclass
class Report:
    """What came back.

    Attributes:
        answers: by route, how many of each status; ``cut`` is a stream that was not ended.
        faults: route, body and answer of each status of 500 and above.
    """

    answers: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults: list[tuple[str, str, str]] = field(default_factory=list)

    def lines(self) -> list[dict[str, Any]]:
        """One record for each route."""
        return [
            {"route": route, "bodies": counts.total(), **dict(sorted(counts.items()))}
            for route, counts in sorted(self.answers.items())
        ]


async def fuzz(url: str, seed: int, bodies: int, at_once: int = 8, say: Callable[[str], None] | None = None) -> Report:
    """Send bodies, and `GOOD` after every ``at_once`` of them.

    Args:
        url: of the server.
        seed: the same one sends the same bodies.
        bodies: how many.
        at_once: how many are under way together.
        say: told of progress.

    Raises:
        ServerFailedError: the server ended, or answers the good request otherwise than before.
    """
    chooser, report = random.Random(seed), Report()
    async with httpx.AsyncClient(base_url=url, timeout=_LONGEST) as client:
        right = await _good(client)
        for first in range(0, bodies, at_once):
            batch = [hostile(chooser) for _ in range(min(at_once, bodies - first))]
            await asyncio.gather(*(_send(client, one, report) for one in batch))
            try:
                answer = await _good(client)
            except httpx.HTTPError as error:
                raise ServerFailedError(f"{error!r} after {batch}") from error
            if answer != right:
                raise ServerFailedError(f"{answer}, not {right}, after {batch}")
            if say is not None and first // 1000 != (first + at_once) // 1000:
                say(f"{first + at_once} bodies, {len(report.faults)} faults")
    return report


async def _good(client: httpx.AsyncClient) -> list[int]:
    answer = (await client.post("/generate", json=GOOD)).raise_for_status()
    ids: list[int] = answer.json()["output_ids"]
    return ids


async def _send(client: httpx.AsyncClient, one: Hostile, report: Report) -> None:
    try:
        answer = await client.post(one.path, content=one.content, headers={"content-type": "application/json"})
    except httpx.RemoteProtocolError:
        report.answers[one.path]["cut"] += 1
        return
    report.answers[one.path][str(answer.status_code)] += 1
    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        report.faults.append((one.path, one.content.decode(), answer.text[:300]))
