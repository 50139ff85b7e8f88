"""What a step in which requests finish costs the scheduler's thread: noting them, launching the read, sending it.

In microseconds a step. The host's time matters, for the next forward is launched later by as much; a server's GPU goes
on meanwhile. What the read takes on the GPU (`gpu_microseconds`) the forward after the next waits for. The row store is
that of an 8B model with 32,768 KV slots; prompts have 128 tokens, or 512. Ends within a minute, on a GPU or without:

  python benchmarks/bench_step.py --out benchmarks/results/step.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zmq

from provenance import provenance, show
from tessera.capabilities.embed.options import EmbedOptions
from tessera.capabilities.fingerprints.options import FingerprintOptions
from tessera.capabilities.registry import BY_NAME, Requested
from tessera.capabilities.states.options import StateOptions
from tessera.delivery.outbox import Outbox
from tessera.delivery.outcome import RowStoreStats
from tessera.rows.reader import RowReader
from tessera.rows.service import Finished, RowService
from tessera.rows.store import RowStore

SLOTS, HIDDEN, PROMPT, TOPK = 32768, 4096, 128, 128
REQUESTS = 64
STEPS, WARM_UP = 200, 20
FORWARD_SECONDS = 0.005
"""The main process takes what a step sent while the next forward runs; faster ones would pile up."""


@dataclass(frozen=True, slots=True)
class Case:
    """So many requests finish, each asking for this."""

    name: str
    requests: int
    requested: Callable[[str, int], Finished]


def main() -> None:
    """Measure every case."""
    options = options_of(__doc__)
    with options.out.open("w") as out:
        for record in itertools.chain([provenance()], _measure()):
            show(record, out)


def _measure() -> Iterator[dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    embed, states = _wanted("embed", EmbedOptions()), _wanted("states", StateOptions())
    fingerprints = _wanted("fingerprints", FingerprintOptions(topk=TOPK))
    claim = _wanted("fingerprints", FingerprintOptions(topk=TOPK, claim="", tail=2 * PROMPT))
    cases = [
        *(Case("embedding", n, lambda key, i: Finished(key, i, PROMPT, 0, embed)) for n in (1, 8, 64)),
        Case("raw rows", 1, lambda key, i: Finished(key, i, PROMPT, 0, states)),
        Case("fingerprints", 1, lambda key, i: Finished(key, i, PROMPT, PROMPT, fingerprints)),
        Case("verification", 16, lambda key, i: Finished(key, i, 4 * PROMPT, 0, claim)),
    ]
    store = RowStore(SLOTS, HIDDEN, torch.bfloat16, device)
    store.rows.fill_(1)
    slots = torch.randperm(SLOTS, device=device).int()[: REQUESTS * 4 * PROMPT].reshape(REQUESTS, 4 * PROMPT)
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/results"
        taker = multiprocessing.get_context("spawn").Process(target=sink, args=(address,), daemon=True)
        taker.start()
        for case in cases:
            figures: dict[str, float] = {}
            for timed in (False, True):  # events that take the time take some themselves
                seconds: list[float] = []
                outbox = Outbox(address, partial(_stats, seconds))
                reader = RowReader(store.rows, slots, TOPK, timed=timed)
                service = RowService(reader, outbox.put, store)
                figures = _case(case, service, outbox) | figures
            gpu = round(1e6 * statistics.median(seconds[WARM_UP:]), 1)
            yield {"case": case.name, "requests": case.requests, **figures, "gpu_microseconds": gpu}
        taker.terminate()


def _wanted(name: str, options: object) -> Requested:
    return {name: (BY_NAME[name], options)}


def _stats(seconds: list[float], read_seconds: float) -> RowStoreStats:
    seconds.append(read_seconds)
    return RowStoreStats(read_seconds, 0, 0, 0)


def _case(case: Case, service: RowService, outbox: Outbox) -> dict[str, float]:
    reads, sends = [], []
    for step in range(STEPS):
        begin = time.perf_counter()
        for request in range(case.requests):
            service.note_finished(case.requested(f"key {step} {request}", request))
        service.flush()
        launched = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # as the scheduler launches its next forward meanwhile
        arrived = time.perf_counter()
        outbox.send(wait=True)
        sends.append(time.perf_counter() - arrived)
        reads.append(launched - begin)
        time.sleep(FORWARD_SECONDS)
    figures = {"read": reads[WARM_UP:], "send": sends[WARM_UP:]}
    return {f"{name}_microseconds": round(1e6 * statistics.median(times), 1) for name, times in figures.items()}


def sink(address: str) -> None:
    """Take what an outbox sends, and throw it away."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    socket.set(zmq.RCVHWM, 0)
    socket.bind(address)
    while True:
        socket.recv_multipart(copy=False)


def options_of(description: str | None) -> argparse.Namespace:
    """The arguments of a benchmark that only writes a file."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
