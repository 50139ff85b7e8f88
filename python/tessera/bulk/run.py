"""The whole run, as a Ray Data pipeline of one task per part."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tessera.bulk.documents import Part
from tessera.bulk.job import PROBE, Job, alike, run
from tessera.client import Client
from tessera.client.options import EncodeOptions
from tessera.client.progress import Bar
from tessera.client.results import Floats

_TASK_CPUS = 0.01
"""A task waits for a server nearly all the time."""


def check_ray() -> None:
    """Raise `ModuleNotFoundError` where Ray is not installed."""
    if find_spec("ray") is None:
        raise ModuleNotFoundError("No module named 'ray'")


def probe(servers: Sequence[str], api_key: str | None, options: EncodeOptions) -> Floats:
    """Ask every server for the vector of `PROBE`; returns the first one's.

    Raises:
        ClientError: a server does not answer, or refuses the options.
        ValueError: two servers have different models.
    """
    vectors = []
    for url in servers:
        with Client(url, api_key=api_key) as client:
            vectors.append(client.encode(PROBE, **options).numpy())
        if not alike(vectors[0], vectors[-1]):
            raise ValueError(f"{servers[0]} and {url} have different models")
    return vectors[0]


def encode(job: Job, parts: Sequence[Part], at_once: int, ray_address: str, bar: Bar) -> None:
    """Encode the parts whose files are not there yet, ``at_once`` at a time, and count what is there in the end.

    Raises:
        ValueError: a part failed, or the files hold another number of rows than the parts.
    """
    left = [part for part in parts if not job.file(part).exists()]
    total = sum(part.rows for part in parts)
    done = total - sum(part.rows for part in left)
    for rows in _encoded(job, left, at_once, ray_address):
        done += rows
        bar.show(done)
    written = sum(pq.ParquetFile(job.file(part)).metadata.num_rows for part in parts)
    if written != total:
        raise ValueError(f"{job.output} has {written} rows for {total} documents")


def _encoded(job: Job, left: Sequence[Part], at_once: int, ray_address: str) -> Iterator[int]:
    if not left:
        return
    with _ray(ray_address, at_once) as ray:
        source = ray.data.from_items([asdict(part) for part in left], override_num_blocks=len(left))
        compute = ray.data.TaskPoolStrategy(size=min(at_once, len(left)))  # a task whose worker ends is run again
        results = source.map(run, fn_kwargs={"job": job}, num_cpus=_TASK_CPUS, compute=compute)
        for result in results.iter_rows():
            if result["problem"]:
                raise ValueError(result["problem"])
            yield result["rows"]


@contextmanager
def _ray(address: str, at_once: int) -> Iterator[Any]:
    """Ray on this machine, or a cluster that runs; without its own progress bars and reports of usage."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")
    import ray
    import ray.data

    local = {} if address != "local" else {"num_cpus": at_once, "include_dashboard": False}
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray
    finally:
        ray.shutdown()


def sources(paths: Sequence[Path]) -> list[list[object]]:
    """Name, bytes and time of change of each input: a run goes on only if they are the same."""
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
