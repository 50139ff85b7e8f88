"""What injection costs: 4 vectors in a prompt beside the same prompt without them, and whole matrices beside stock.

One server of ours with ``--enable-injection``, and the stock server (TESSERA_DISABLE=1) with ``--disable-radix-cache``,
without which it takes no embeddings. Only one is under load at a time. Cases, in a different order each round:

  plain    our server, plain requests
  inject   the same requests, 4 vectors of H bfloat16 numbers in each
  matrix   our server, the whole prompt as input_embeds_b64
  stock    the stock server, the whole prompt as input_embeds (lists of numbers, the only form that it takes)

``matrix`` and ``stock`` have a load of their own, one request at a time: reading a list takes the stock server ten
seconds for each. No prompt is sent twice, so nothing comes from a prefix cache. Writes a JSON line for each measurement
and prints ratios to ``plain``, and of ``matrix`` to ``stock``. For the 8B shape on an H200 about 250 s, and 170 s more
if the servers do not run yet (see `rig.py`). Example (dummy weights of an 8B Llama):

  python benchmarks/bench_injection.py --model /models/8b --hidden-size 4096 --out results/injection.jsonl -- \
      --load-format dummy --attention-backend fa3 --mem-fraction-static 0.35
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from load import Call, Load, Measured, load_of, percentile, random_prompts, run, sampling, turns, typical_latency
from provenance import note, provenance, show
from rig import serve_all

POSITIONS = (100, 101, 102, 300)


class Vectors:
    """Random vectors about as long as embeddings, as they are sent. bfloat16 is the upper half of a float32.

    Args:
        width: H.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows = (np.random.default_rng(0).standard_normal((64, width)) / 64).astype("<f4")

    def overrides(self, count: int) -> dict[str, Any]:
        """``input_embed_overrides``."""
        halves = (self._rows[:count].view("<u4") >> 16).astype("<u2")
        embeds = base64.b64encode(halves.tobytes()).decode()
        positions = list(POSITIONS[:count])
        return {"positions": positions, "embeds": embeds, "shape": [count, self._width], "dtype": "bfloat16"}

    def base64(self, load: Load, seed: int) -> Iterator[Call]:
        """Bodies with ``input_embeds_b64``: the first rows are others each time, the rest is made once."""
        row_bytes = self._width * 2
        rest = base64.b64encode(bytes((load.prompt_tokens - 3) * row_bytes)).decode()
        chooser = random.Random(seed)
        while True:
            # Three rows: their bytes are a multiple of three, so the texts can be put together.
            first = base64.b64encode(_small_halves(chooser, 3 * self._width)).decode()
            matrix = {"data": first + rest, "shape": [load.prompt_tokens, self._width], "dtype": "bfloat16"}
            body = json.dumps({"input_embeds_b64": matrix, "sampling_params": sampling(load.output_tokens)})
            yield Call("/generate", body.encode(), {})

    def lists(self, load: Load, _: int) -> Iterator[Call]:
        """Bodies with ``input_embeds``, all the same: the stock server has no prefix cache that could know it."""
        rows = [json.dumps([float(value) for value in row]) for row in self._rows[:32]]
        many = ",".join(rows[i % 32] for i in range(load.prompt_tokens))
        body = f'{{"input_embeds": [{many}], "sampling_params": {json.dumps(sampling(load.output_tokens))}}}'
        return itertools.repeat(Call("/generate", body.encode(), {}))


def _small_halves(chooser: random.Random, count: int) -> bytes:
    """bfloat16 numbers between 2^-7 and 2^-6."""
    low = np.frombuffer(chooser.randbytes(count), np.uint8).astype("<u2") & 0x7F
    return (low | 0x3C00).astype("<u2").tobytes()


def main() -> None:
    """Start both servers, measure, print the ratios."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    options.out.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with ExitStack() as servers, options.out.open("w") as out:
        stock, ours = serve_all(servers, options, "stock-uncached", "injecting")
        note(provenance() | {"server_args": options.server_args}, out)
        _all(options, {"stock": stock, "ours": ours}, out)
        print(f"done after {time.perf_counter() - begin:.0f} s", flush=True)


def _all(options: argparse.Namespace, urls: dict[str, str], out: TextIO) -> None:
    vectors = Vectors(options.hidden_size)
    for load in options.loads:
        injected = {"input_embed_overrides": vectors.overrides(options.vectors)}
        sends: dict[str, Send] = {"plain": ("ours", {}, None), "inject": ("ours", injected, None)}
        _show_summary(out, load, _measure(urls, load, sends, options.rounds, out), "plain")
    load = options.matrix_load
    matrices: dict[str, Send] = {
        "stock": ("stock", {}, vectors.lists),
        "matrix": ("ours", {}, vectors.base64),
    }
    _show_summary(out, load, _measure(urls, load, matrices, 1, out), "stock")


Send = tuple[str, dict[str, Any], Callable[[Load, int], Iterator[Call]] | None]
"""To which server, what is added to the body, or what makes bodies of a load and a seed."""


def _measure(
    urls: dict[str, str], load: Load, sends: dict[str, Send], rounds: int, out: TextIO
) -> dict[str, list[Measured]]:
    def warm_up(case: str) -> float:
        server, extra, calls = sends[case]
        own = [calls(load, seed) if calls else None for seed in (0, 1)]
        prompts = [random_prompts(load, seed) for seed in (0, 1)]
        return max(typical_latency(urls[server], load, extra, prompts[i], own[i]) for i in (0, 1))

    def send(case: str, seed: int) -> Measured:
        server, extra, calls = sends[case]
        return run(urls[server], load, extra, seed, seconds[case], calls=calls(load, seed) if calls else None)

    seconds = {case: warm_up(case) for case in sends}
    measured: dict[str, list[Measured]] = {case: [] for case in sends}
    cases = list(sends)
    for number, case in turns(cases, rounds):
        result = send(case, 100 + 10 * number + cases.index(case))  # never the same prompts twice
        measured[case].append(result)
        note({"case": case, "round": number} | result.record(load), out)
    return measured


def _show_summary(out: TextIO, load: Load, measured: dict[str, list[Measured]], base: str) -> None:
    for line in _summary(load, measured, base):
        show({"summary": line}, out)


def _summary(load: Load, measured: dict[str, list[Measured]], base: str) -> Iterator[dict[str, Any]]:
    for case, results in measured.items():
        shares = [
            own.requests_per_second / other.requests_per_second
            for own, other in zip(results, measured[base], strict=True)
        ]
        yield {
            "load": str(load),
            "case": case,
            "requests_per_second": statistics.median(result.requests_per_second for result in results),
            "p50": round(_latency(results, 0.5), 4),
            "p99": round(_latency(results, 0.99), 4),
            f"throughput_of_{base}": round(statistics.median(shares), 4),
            f"throughput_of_{base}_least": round(min(shares), 4),
            f"p50_of_{base}": round(_latency(results, 0.5) / _latency(measured[base], 0.5), 4),
            f"p99_of_{base}": round(_latency(results, 0.99) / _latency(measured[base], 0.99), 4),
            "errors": sum(result.errors for result in results),
        }


def _latency(results: Sequence[Measured], share: float) -> float:
    return percentile([latency for result in results for latency in result.latencies], share)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, for both servers")
    parser.add_argument("--hidden-size", type=int, required=True, help="H of the model, a multiple of 2")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here, server logs beside it")
    parser.add_argument("--vectors", type=int, default=len(POSITIONS), help="vectors in each prompt, up to 4 (default)")
    parser.add_argument("--rounds", type=int, default=4, help="measurements of plain and inject (default 4)")
    parser.add_argument(
        "--loads",
        type=load_of,
        nargs="+",
        default=[load_of("512/16/32"), load_of("512/128/32")],
        help="of plain and inject: PROMPT/OUTPUT/CLIENTS[/SECONDS], PROMPT above 300, SECONDS by default 6",
    )
    parser.add_argument("--matrix-load", type=load_of, default=load_of("512/16/1/20"), help="of stock and matrix")
    parser.add_argument("server_args", nargs="*", help="after --: arguments for both servers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
