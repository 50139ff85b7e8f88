"""One thread that builds and verifies fingerprints, so that the event loop does not: what waits is done at once."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import cache
from queue import Empty, SimpleQueue
from typing import NamedTuple

from tessera.capabilities.fingerprints import codec
from tessera.capabilities.fingerprints.codec import Fingerprint
from tessera.capabilities.fingerprints.counters import BUILD, COMPARE, FINGERPRINTS_BUILT, FINGERPRINTS_COMPARED
from tessera.capabilities.fingerprints.verifier import Distance, distances
from tessera.rows.reads import Points
from tessera.telemetry import count, timed


class _Job(NamedTuple):
    """Fingerprints to build (``claimed`` is None) or to verify, and who waits for the result."""

    points: Sequence[Points]
    claimed: Sequence[Fingerprint] | None
    loop: asyncio.AbstractEventLoop
    result: asyncio.Future[list[str] | list[Distance]]


class Builder:
    """Builds and verifies off the event loop. NumPy does the work, mostly without the interpreter's lock."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._run, name="tessera-fingerprints", daemon=True).start()

    def build(self, points: Sequence[Points]) -> asyncio.Future[list[str]]:
        """Begin with one fingerprint for each. Call in the event loop; the result is base64."""
        return self._submit(points, None)  # type: ignore[return-value]

    async def verify(self, claimed: Sequence[Fingerprint], own: Sequence[Points]) -> list[Distance]:
        """See `tessera.capabilities.fingerprints.verifier.distances`."""
        return await self._submit(own, claimed)  # type: ignore[return-value]

    def _submit(
        self, points: Sequence[Points], claimed: Sequence[Fingerprint] | None
    ) -> asyncio.Future[list[str] | list[Distance]]:
        loop = asyncio.get_running_loop()
        job = _Job(points, claimed, loop, loop.create_future())
        self._jobs.put(job)
        return job.result

    def _run(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            try:
                while True:
                    jobs.append(self._jobs.get_nowait())
            except Empty:
                pass
            _run([job for job in jobs if job.claimed is None], _build_all)
            _run([job for job in jobs if job.claimed is not None], _verify_all)


@cache
def shared_builder() -> Builder:
    """The `Builder` of this process."""
    return Builder()


def _build_all(jobs: Sequence[_Job]) -> list[str]:
    with timed(BUILD):
        found = [one.to_base64() for one in codec.build([points for job in jobs for points in job.points])]
    count(FINGERPRINTS_BUILT, len(found))
    return found


def _verify_all(jobs: Sequence[_Job]) -> list[Distance]:
    claimed = [one for job in jobs for one in job.claimed or ()]
    with timed(COMPARE):
        found = distances(claimed, [points for job in jobs for points in job.points])
    count(FINGERPRINTS_COMPARED, len(found))
    return found


def _run(jobs: Sequence[_Job], work: Callable[[Sequence[_Job]], list[str] | list[Distance]]) -> None:
    """All jobs at once; if that fails, each alone, so that a job that cannot be done fails no other."""
    if not jobs:
        return
    try:
        done = work(jobs)
    except Exception as error:  # noqa: BLE001 - the thread must live; the request that cannot be done gets the error
        if len(jobs) > 1:
            for job in jobs:
                _run([job], work)
        else:
            jobs[0].loop.call_soon_threadsafe(_settle, jobs[0].result, None, error)
        return
    begin = 0
    for job in jobs:
        upto = begin + len(job.points)
        job.loop.call_soon_threadsafe(_settle, job.result, done[begin:upto], None)
        begin = upto


def _settle(
    result: asyncio.Future[list[str] | list[Distance]],
    done: list[str] | list[Distance] | None,
    error: Exception | None,
) -> None:
    if result.cancelled():
        return
    if error is not None:
        result.set_exception(error)
    elif done is not None:
        result.set_result(done)
