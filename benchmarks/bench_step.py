"""What a step in which requests finish costs the scheduler's thread: noting them, launching the read, sending it.

Only the host's time counts, in microseconds a step: a server's GPU goes on meanwhile, but the next forward is launched
later by as much. The row store is that of an 8B model with 32,768 KV slots; prompts have 128 tokens. Ends within a
minute, on a GPU or without:

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
from pathlib import Path
from typing import Any

import torch
import zmq

from provenance import provenance, tell
from tessera.delivery.outbox import Outbox
from tessera.embed.options import EmbedOptions
from tessera.fingerprint.options import FingerprintOptions
from tessera.rows.reader import RowReader
from tessera.rows.service import Finished, RowService
from tessera.rows.store import RowStore
from tessera.states.options import StateOptions

SLOTS, HIDDEN, PROMPT, TOPK = 32768, 4096, 128, 128
STEPS, WARM_UP = 200, 20
FORWARD_SECONDS = 0.005
"""The main process takes what a step sent while the next forward runs; faster ones would pile up."""


@dataclass(frozen=True, slots=True)
class Case:
    """So many requests finish, each asking for this."""

    name: str
    requests: int
    wanted: Callable[[str, int], Finished]


def main() -> None:
    """Measure every case."""
    options = _options()
    with options.out.open("w") as out:
        for record in itertools.chain([provenance()], _measure()):
            tell(record, out)


def _measure() -> Iterator[dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wires: dict[str, Any] = {"embed": EmbedOptions(), "states": StateOptions(), "fingerprints": FingerprintOptions()}
    wire = {name: options.to_wire() for name, options in wires.items()}
    cases = [
        *(Case("embedding", n, lambda key, i: Finished(key, i, PROMPT, 0, embed=wire["embed"])) for n in (1, 8, 64)),
        Case("raw rows", 1, lambda key, i: Finished(key, i, PROMPT, 0, states=wire["states"])),
        Case("fingerprints", 1, lambda key, i: Finished(key, i, PROMPT, 0, fingerprints=wire["fingerprints"])),
    ]
    store = RowStore(SLOTS, HIDDEN, torch.bfloat16, device)
    store.rows.fill_(1)
    slots = torch.randperm(SLOTS, device=device).int()[: 64 * PROMPT].reshape(64, PROMPT)
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/results"
        sink = multiprocessing.get_context("spawn").Process(target=_sink, args=(address,), daemon=True)
        sink.start()
        outbox = Outbox(address)
        service = RowService(RowReader(store.rows, slots, TOPK), outbox.put, lambda: store.broken, HIDDEN, TOPK)
        for case in cases:
            yield _case(case, service, outbox)
        sink.terminate()


def _case(case: Case, service: RowService, outbox: Outbox) -> dict[str, Any]:
    reads, sends = [], []
    for step in range(STEPS):
        begin = time.perf_counter()
        for request in range(case.requests):
            service.finished(case.wanted(f"key {step} {request}", request))
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
    medians = {f"{name}_microseconds": round(1e6 * statistics.median(times), 1) for name, times in figures.items()}
    return {"case": case.name, "requests": case.requests, **medians}


def _sink(address: str) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    socket.set(zmq.RCVHWM, 0)
    socket.bind(address)
    while True:
        socket.recv_multipart(copy=False)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
