"""What fingerprints cost, and how fast they are verified: the stock server beside ours, on one GPU, in one run.

  throughput    stock (TESSERA_DISABLE=1), idle (ours, nobody asks), proven (ours, fingerprints on every request),
                taking turns, in a different order each round; `added_step_microseconds` is what a decode step takes
                longer than the stock one
  verification  claims of fresh responses to /v1/toploc/verify, against a plain prefill of the same tokens on the same
                server, and against the time in which the responses were generated; the prefix cache is flushed before
                each, and they take turns

No prompt is sent twice to a server. Writes a JSON line for each measurement and each summary, server logs beside it.
For the 8B shape on an H200 about 250 s, and 170 s more if the servers do not run yet (see `rig.py`). Example (dummy
weights of an 8B Llama):

  python benchmarks/bench_toploc.py --model /models/8b --out benchmarks/results/toploc.jsonl -- \
      --load-format dummy --attention-backend fa3 --mem-fraction-static 0.35
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import httpx

from frozen import freeze
from load import FIRST_ID, LAST_ID, Load, Measured, load_of, take_turns, warm_up
from provenance import note, provenance, show
from rig import serve_all

WITH_FINGERPRINTS = {"return_toploc_fingerprints": True}
IDS = {"return_input_ids": True, "return_output_ids": True}
CASES = ("stock", "idle", "proven")


def main() -> None:
    """Start both servers, measure, print the ratios."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    options.out.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with ExitStack() as servers, options.out.open("w") as out:
        stock, ours = serve_all(servers, options, "stock", "ours")
        note(provenance() | {"server_args": options.server_args}, out)
        for together in options.together:  # first: it is short, and needs no quiet neighbour
            _verification(ours, together, options, out)
        for load in options.loads:
            _throughput({"stock": stock, "idle": ours, "proven": ours}, load, options.rounds, out)
        print(f"done after {time.perf_counter() - begin:.0f} s", flush=True)


def _throughput(urls: dict[str, str], load: Load, rounds: int, out: TextIO) -> None:
    cases = {case: (urls[case], WITH_FINGERPRINTS if case == "proven" else {}) for case in CASES}
    request_seconds = max(warm_up(cases, load, seed) for seed in (0, len(cases)))
    measured: dict[str, list[Measured]] = {case: [] for case in CASES}
    for case, number, result in take_turns(cases, load, rounds, request_seconds):
        measured[case].append(result)
        note({"case": case, "round": number} | result.record(load), out)
    plain = measured["stock"]
    for case in CASES:
        shares = [a.requests_per_second / b.requests_per_second for a, b in zip(measured[case], plain, strict=True)]
        longer = statistics.median(a.p50 - b.p50 for a, b in zip(measured[case], plain, strict=True))
        summary = {
            "load": str(load),
            "case": case,
            "of_stock": round(statistics.median(shares), 4),
            "of_stock_least": round(min(shares), 4),
            "of_stock_most": round(max(shares), 4),
            "added_step_microseconds": round(longer / load.output_tokens * 1e6, 1),
            "errors": sum(result.errors for result in measured[case]),
        }
        show({"summary": summary}, out)


def _verification(url: str, together: int, options: argparse.Namespace, out: TextIO) -> None:
    results = []
    with httpx.Client(base_url=url, timeout=600, limits=httpx.Limits(max_connections=together)) as client:
        for i in range(options.rounds + 1):
            chooser = random.Random(i)
            prompts = [[chooser.randrange(FIRST_ID, LAST_ID) for _ in range(256)] for _ in range(together)]
            seconds = {}
            generate = partial(_generate, new_tokens=options.new_tokens)
            seconds["generate"], claims = _timed(client, generate, prompts)
            tokens = [claim["input_ids"] + claim["output_ids"][:-1] for claim in claims]
            ways: list[tuple[str, Callable[[httpx.Client, Any], Any], Any]] = [
                ("verify", _verify, claims),
                ("prefill", _prefill, tokens),
            ]
            for name, way, what in ways if i % 2 else ways[::-1]:
                seconds[name], found = _timed(client, way, what)
                seconds.update(found)
            seconds["tokens"] = sum(map(len, tokens))
            if i:
                results.append(seconds)
                note({"case": "verification", "together": together, "round": i} | seconds, out)
            else:  # the first warms up
                freeze([url])
    summary = {
        "verification_together": together,
        "input_tokens_per_second_of_prefill": round(statistics.median(r["prefill"] / r["verify"] for r in results), 4),
        "time_of_generation": round(statistics.median(r["verify"] / r["generate"] for r in results), 5),
        "passed": sum(r["passed"] for r in results),
        "claims": together * len(results),
        "verified_tokens_per_second": round(statistics.median(r["tokens"] / r["verify"] for r in results)),
    }
    show({"summary": summary}, out)


def _timed(client: httpx.Client, work: Callable[[httpx.Client, Any], Any], what: Any) -> tuple[float, Any]:
    client.post("/flush_cache").raise_for_status()
    begin = time.perf_counter()
    result = work(client, what)
    return time.perf_counter() - begin, result


def _generate(client: httpx.Client, prompts: list[list[int]], new_tokens: int) -> list[Any]:
    sampling = {"max_new_tokens": new_tokens, "temperature": 0.8, "ignore_eos": True}

    def one(prompt: list[int]) -> Any:
        body = {"input_ids": prompt, "sampling_params": sampling, **WITH_FINGERPRINTS, **IDS}
        meta = client.post("/generate", json=body).raise_for_status().json()["meta_info"]
        fingerprints = meta["toploc_verification_fingerprints"]
        return {"input_ids": meta["input_ids"], "output_ids": meta["output_ids"], "fingerprints": fingerprints}

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, prompts))


def _verify(client: httpx.Client, claims: list[Any]) -> dict[str, int]:
    results = client.post("/v1/toploc/verify", json={"claims": claims}).raise_for_status().json()["results"]
    return {"passed": sum(result["verdict"] == "pass" for result in results)}


def _prefill(client: httpx.Client, tokens: list[list[int]]) -> dict[str, int]:
    body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 0}}
    client.post("/generate", json=body).raise_for_status()
    return {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, for both servers")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here, server logs beside it")
    parser.add_argument("--rounds", type=int, default=6, help="measurements of each case (default 6)")
    parser.add_argument(
        "--loads",
        type=load_of,
        nargs="+",
        default=[load_of("128/128/64")],
        help="PROMPT/OUTPUT/CLIENTS[/SECONDS], SECONDS by default 6 (default 128/128/64)",
    )
    parser.add_argument(
        "--together", type=int, nargs="*", default=[1, 64], help="how many responses are verified at once (1 64)"
    )
    parser.add_argument("--new-tokens", type=int, default=256, help="tokens of a response to verify (default 256)")
    parser.add_argument("server_args", nargs="*", help="after --: arguments for both servers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
