"""What embeddings cost: the stock server beside ours, on one GPU, in one run, taking turns.

Three cases for each load, in a different order each round:

  stock   a server with TESSERA_DISABLE=1, plain requests
  idle    our server with --enable-return-hidden-states, plain requests: nobody asks
  embed   the same server, return_embedding on every request (base64)

Both servers stay up; only one is under load at a time. Writes a JSON line for each measurement and prints the ratios to
`stock` with their spread over the rounds. Example (dummy weights of an 8B Llama):

  python benchmarks/bench_embeddings.py --model /models/8b --out benchmarks/results/embeddings.jsonl -- \
      --load-format dummy --attention-backend fa3 --mem-fraction-static 0.35
"""

from __future__ import annotations

import argparse
import signal
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from load import Load, Measured, load_of, percentile, take_turns, warm_up
from provenance import note, provenance, show
from rig import serve_all

EMBED = {"return_embedding": {"encoding_format": "base64"}}
CASES = ("stock", "idle", "embed")


def main() -> None:
    """Start both servers, measure, print the ratios."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    with ExitStack() as servers, options.out.open("w") as out:
        urls = _start(servers, options)
        note(provenance() | {"server_args": options.server_args}, out)
        for load in options.loads:
            for line in _summary(load, _measure(urls, load, options, out)):
                show({"summary": line}, out)


def _start(servers: ExitStack, options: argparse.Namespace) -> dict[str, str]:
    stock, ours = serve_all(servers, options, "stock", "ours")
    return {"stock": stock, "idle": ours, "embed": ours}


def _measure(urls: dict[str, str], load: Load, options: argparse.Namespace, out: TextIO) -> dict[str, list[Measured]]:
    cases = {case: (urls[case], EMBED if case == "embed" else {}) for case in CASES}
    request_seconds = max(warm_up(cases, load, seed) for seed in (0, len(cases)))
    measured: dict[str, list[Measured]] = {case: [] for case in CASES}
    for case, number, result in take_turns(cases, load, options.rounds, request_seconds):
        measured[case].append(result)
        note({"case": case, "round": number} | result.record(load), out)
    return measured


def _summary(load: Load, measured: dict[str, list[Measured]]) -> Iterator[dict[str, Any]]:
    stock = measured["stock"]
    stock_p99 = percentile([latency for result in stock for latency in result.latencies], 0.99)
    for case in CASES:
        shares = [
            result.requests_per_second / plain.requests_per_second
            for result, plain in zip(measured[case], stock, strict=True)
        ]
        p99 = percentile([latency for result in measured[case] for latency in result.latencies], 0.99)
        yield {
            "load": str(load),
            "case": case,
            "requests_per_second": statistics.median(result.requests_per_second for result in measured[case]),
            "of_stock": round(statistics.median(shares), 4),
            "of_stock_least": round(min(shares), 4),
            "of_stock_most": round(max(shares), 4),
            "of_stock_by_sums": round(_rate(measured[case]) / _rate(stock), 4),
            "of_stock_by_best": round(_best(measured[case]) / _best(stock), 4),
            "p99": round(p99, 4),
            "p99_of_stock": round(p99 / stock_p99, 4),
            "kilobytes_per_response": measured[case][0].kilobytes_per_response,
            "errors": sum(result.errors for result in measured[case]),
            "stolen_most": max(result.stolen for result in measured[case]),
        }


def _best(results: list[Measured]) -> float:
    """Of the window that was disturbed least."""
    return max(result.requests_per_second for result in results)


def _rate(results: list[Measured]) -> float:
    return sum(result.requests_per_second for result in results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, for both servers")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here, server logs beside it")
    parser.add_argument("--rounds", type=int, default=4, help="measurements of each case and load (default 4)")
    parser.add_argument(
        "--loads",
        type=load_of,
        nargs="+",
        default=[load_of(text) for text in ("128/128/32", "128/128/64", "128/128/128", "512/1/32")],
        help="PROMPT/OUTPUT/CLIENTS[/SECONDS], SECONDS by default 6",
    )
    parser.add_argument("server_args", nargs="*", help="after --: arguments for both servers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
