"""What fingerprints of running requests cost the scheduler's thread in each step; no model, no server.

64 requests generate a token in each step. In one row of the table all began together and end together, in the other
each began at another time: whenever one ends, a new one takes its place. Timed are our hooks of a step, those that
SGLang's scheduler calls, from the first line to the return: noting who finished, finding who has a complete
fingerprint and launching the read, sending what arrived. In microseconds a step; the goal of the mean is 30. The
requests are stand-ins with what the hooks look at of SGLang's ``Req``. Ends within a minute:

  python benchmarks/bench_running.py --out benchmarks/results/running.jsonl
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import torch

from bench_step import options_of, sink
from provenance import provenance, show
from tessera import carry
from tessera.capabilities.fingerprints.options import FingerprintOptions
from tessera.capabilities.registry import BY_NAME
from tessera.delivery.outbox import Outbox
from tessera.rows.due import DueReads
from tessera.rows.reader import RowReader
from tessera.rows.service import RowService
from tessera.rows.store import RowStore
from tessera_patches.rows import results, runtime

REQUESTS, PROMPT, HIDDEN, TOPK = 64, 128, 4096, 128
WIRES = {"fingerprints": BY_NAME["fingerprints"].to_wire(FingerprintOptions(topk=TOPK))}
ROUNDS = 4
"""Of all requests; the first one warms up."""
FORWARD_SECONDS = 0.002


LIVE = carry.Live()


class Request:
    """What our hooks look at of a request."""

    def __init__(self, place: int, number: int, *, stream: bool, output_tokens: int) -> None:
        self.rid = f"request {number}"
        self.req_pool_idx = place
        self.stream = stream
        self.is_retracted = False
        self.retraction_count = self.inflight_middle_chunks = 0
        self.finished_reason = None
        self.origin_input_ids = range(PROMPT)
        self.output_ids: list[int] = []
        self.sampling_params = SimpleNamespace(**carry.put({}, LIVE, WIRES))
        self.session = None
        self._output_tokens = output_tokens

    @property
    def output_ids_through_stop(self) -> list[int]:
        """All of them."""
        return self.output_ids

    def finished(self) -> bool:
        """Whether it has all its tokens."""
        return len(self.output_ids) >= self._output_tokens


def main() -> None:
    """Measure every case."""
    options = options_of(__doc__)
    with tempfile.TemporaryDirectory() as folder, options.out.open("w") as out:
        address = f"ipc://{folder}/results"
        taker = multiprocessing.get_context("spawn").Process(target=sink, args=(address,), daemon=True)
        taker.start()
        _set_up(address)
        gc.freeze()  # a server's are frozen in our measurements: see frozen.py
        show(provenance(), out)
        for output_tokens, together, stream in itertools.product((128, 512), (True, False), (False, True)):
            steps = list(_steps(output_tokens, together=together, stream=stream))[output_tokens:]
            times = sorted(1e6 * sum(parts.values()) for parts in steps)
            figures = {
                "mean": statistics.fmean(times),
                "p50": statistics.median(times),
                "p99": times[-(len(times) // 100)],
            }
            figures |= {part: 1e6 * statistics.fmean(step[part] for step in steps) for part in steps[0]}
            case = {"requests": REQUESTS, "output_tokens": output_tokens, "together": together, "stream": stream}
            show(case | {f"{name}_microseconds": round(figure, 1) for name, figure in figures.items()}, out)
        taker.terminate()


def _set_up(address: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = PROMPT + 512
    store = RowStore(REQUESTS * tokens, HIDDEN, torch.bfloat16, device)
    store.rows.normal_()
    slots = torch.randperm(REQUESTS * tokens, device=device).int().reshape(REQUESTS, tokens)
    runtime.outbox = Outbox(address)
    reader = RowReader(store.rows, slots, TOPK)
    runtime.service = RowService(reader, runtime.outbox.put, store)


def _steps(output_tokens: int, *, together: bool, stream: bool) -> Iterator[dict[str, float]]:
    """Seconds of each of our hooks in each step."""
    runtime.due = DueReads(results.tokens_to_next_read, stride=1)
    numbers = itertools.count()
    running: list[Request] = []
    for step in range(ROUNDS * output_tokens):
        parts = {"send": _timed(partial(results.send_arrived, None))}
        for request in running:
            request.output_ids.append(7)
        done = [request for request in running if request.finished()]
        running = [request for request in running if not request.finished()]
        places = {request.req_pool_idx for request in running}
        due = REQUESTS if together else min(REQUESTS, 1 + step * REQUESTS // output_tokens)
        new = [
            Request(place, next(numbers), stream=stream, output_tokens=output_tokens)
            for place in range(due)
            if place not in places
        ]
        batch = SimpleNamespace(reqs=new)
        parts["note"] = _timed(partial(_note, done))
        parts["due"] = _timed(partial(results.note_prefilled, None, batch, None))
        parts["read"] = _timed(partial(results.read_rows, None))
        yield parts
        running += new
        _forward()


def _note(done: list[Request]) -> None:
    for request in done:
        results.note_finished(None, request)


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _forward() -> None:
    """The scheduler's thread waits for the GPU and does not sleep: its processor stays awake."""
    end = time.perf_counter() + FORWARD_SECONDS
    while time.perf_counter() < end:
        pass


if __name__ == "__main__":
    main()
