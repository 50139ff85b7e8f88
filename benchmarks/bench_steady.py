r"""What embeddings and fingerprints cost under mixed traffic: the stock server beside ours, as users start them.

A closed loop of CLIENTS: each sends its next request when its last one was answered. Prompts and answers have mixed
lengths, and half of the prompts begin with one of eight shared prefixes. Five cases take turns, in a different order
each round, and replay the same arrivals and lengths in a round:

  stock         a server with TESSERA_DISABLE=1, plain requests
  idle          our server with --enable-return-hidden-states, plain requests: nobody asks
  embed         the same server, return_embedding on every request (base64)
  fingerprints  the same server, return_toploc_fingerprints on every request
  both          the same server, both on every request

Each case sends other token ids, or the prefix cache would answer the next one. Writes a JSON line for each measurement,
and prints the ratios to `stock` with their standard errors. Give no option that SGLang does not use by default, but for
memory: both servers share one GPU.

  python benchmarks/bench_steady.py --model /models/8b --out benchmarks/results/steady.jsonl \
      --loads 64-2048/64-192/32 64-2048/256-1024/128 -- --load-format dummy --max-total-tokens 98304
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from frozen import freeze
from load import FIRST_ID, LAST_ID, Answer, Call, Send, ask, percentile, prepared, turns
from processors import processor_time, stolen_since
from provenance import note, provenance, show
from rig import serve_all

EMBED: dict[str, Any] = {"return_embedding": {"encoding_format": "base64"}}
FINGERPRINTS: dict[str, Any] = {"return_toploc_fingerprints": True}
CASES: dict[str, dict[str, Any]] = {
    "stock": {},
    "idle": {},
    "embed": EMBED,
    "fingerprints": FINGERPRINTS,
    "both": EMBED | FINGERPRINTS,
}
PREFIXES = 8
PREFIX_TOKENS = 256


class Mix(NamedTuple):
    """`clients` at a time; lengths in tokens, each with an equal share of every octave between the bounds."""

    prompt: tuple[int, int]
    output: tuple[int, int]
    clients: int

    def __str__(self) -> str:
        return f"{self.prompt[0]}-{self.prompt[1]}/{self.output[0]}-{self.output[1]}/{self.clients}"


class Lengths(NamedTuple):
    """Of one request, in tokens; `shared` is the number of its prefix, or None."""

    prompt: int
    output: int
    shared: int | None


class Replayed(NamedTuple):
    """What one replay came to. Seconds from the first request to the last byte of the last answer."""

    seconds: float
    output_tokens_per_second: float
    input_tokens_per_second: float
    p50: float
    p99: float
    errors: int
    stolen: float


def main() -> None:
    """Start both servers, replay every load in every case, print the ratios."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    deadline = time.monotonic() + options.limit
    with ExitStack() as servers, options.out.open("w") as out:
        stock, ours = serve_all(servers, options, "stock", "ours")
        urls = {case: stock if case == "stock" else ours for case in options.cases}
        note(provenance() | {"server_args": options.server_args, "requests_per_client": options.requests}, out)
        for mix in options.loads:
            measured: dict[str, list[Replayed]] = {case: [] for case in urls}
            for case, url in urls.items():  # a warm-up: the first requests of a size compile kernels
                replay_mix(url, mix, lengths_of(mix, mix.clients, "warm-up"), f"warm-up {case}", CASES[case])
            freeze(urls.values())
            for number, case in turns(options.cases, options.rounds):
                if time.monotonic() > deadline:
                    break
                lengths = lengths_of(mix, mix.clients * options.requests, f"{mix} {number}")
                found = replay_mix(urls[case], mix, lengths, f"{case} {number} {mix}", CASES[case])
                measured[case].append(found)
                note({"load": str(mix), "case": case, "round": number} | found._asdict(), out)
            for line in _summary(mix, measured):
                show({"summary": line}, out)


def lengths_of(mix: Mix, count: int, seed: str) -> list[Lengths]:
    """Of so many requests; the same for the same seed."""
    chooser = random.Random(seed)

    def between(low: int, high: int) -> int:
        return round(math.exp(chooser.uniform(math.log(low), math.log(high))))

    return [
        Lengths(between(*mix.prompt), between(*mix.output), chooser.choice([None, chooser.randrange(PREFIXES)]))
        for _ in range(count)
    ]


def _calls(lengths: Sequence[Lengths], seed: str) -> Iterator[Call]:
    chooser = random.Random(seed)

    def ids(count: int) -> list[int]:
        return chooser.choices(range(FIRST_ID, LAST_ID), k=count)

    prefixes = [ids(PREFIX_TOKENS) for _ in range(PREFIXES)]
    for own in lengths:
        begin = [] if own.shared is None else prefixes[own.shared][: own.prompt - 1]
        params = {"max_new_tokens": own.output, "temperature": 0.0, "ignore_eos": True}
        yield Call("/generate", {"input_ids": begin + ids(own.prompt - len(begin)), "sampling_params": params}, {})


def replay_mix(url: str, mix: Mix, lengths: Sequence[Lengths], seed: str, extra: dict[str, Any]) -> Replayed:
    """Send requests of these lengths with random ids, of a mix's clients; `extra` goes into each body."""
    return replay(url, mix.clients, [prepared(call, extra) for call in _calls(lengths, seed)], lengths)


def replay(url: str, clients: int, sends: Sequence[Send], lengths: Sequence[Lengths]) -> Replayed:
    """Send these requests, of these lengths, in a closed loop of so many clients, and wait for all answers."""
    before = processor_time()
    answers = asyncio.run(_closed_loop(url, clients, sends))
    seconds = max(answer.end for answer in answers) - min(answer.begin for answer in answers)
    latencies = [answer.end - answer.begin for answer in answers]
    return Replayed(
        seconds=round(seconds, 4),
        output_tokens_per_second=round(sum(own.output for own in lengths) / seconds, 1),
        input_tokens_per_second=round(sum(own.prompt for own in lengths) / seconds, 1),
        p50=round(percentile(latencies, 0.5), 4),
        p99=round(percentile(latencies, 0.99), 4),
        errors=sum(answer.status != HTTPStatus.OK for answer in answers),
        stolen=stolen_since(before),
    )


async def _closed_loop(url: str, clients: int, sends: Sequence[Send]) -> list[Answer]:
    waiting = iter(sends)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client() -> list[Answer]:
            return [await ask(session, *send) for send in waiting]

        return [*itertools.chain(*await asyncio.gather(*(client() for _ in range(clients))))]


def _summary(mix: Mix, measured: dict[str, list[Replayed]]) -> Iterator[dict[str, Any]]:
    """Ratios of the same round, and the standard error of their mean."""
    for case, found in measured.items():
        ratios = [plain.seconds / own.seconds for own, plain in zip(found, measured["stock"], strict=False)]
        if not ratios:
            continue
        spread = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
        yield {
            "load": str(mix),
            "case": case,
            "rounds": len(ratios),
            "of_stock": round(statistics.mean(ratios), 4),
            "standard_error": None if spread is None else round(spread, 4),
            "of_stock_each": [round(ratio, 3) for ratio in ratios],
            "output_tokens_per_second": statistics.median(own.output_tokens_per_second for own in found),
            "p50": statistics.median(own.p50 for own in found),
            "p99": statistics.median(own.p99 for own in found),
            "errors": sum(own.errors for own in found),
            "stolen_most": max(own.stolen for own in found),
        }


def mix_of(text: str) -> Mix:
    """PROMPT/OUTPUT/CLIENTS, lengths as LOW-HIGH."""
    prompt, output, clients = text.split("/")
    low, high = (tuple(map(int, part.split("-"))) for part in (prompt, output))
    return Mix((low[0], low[1]), (high[0], high[1]), int(clients))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, for both servers")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here, server logs beside it")
    parser.add_argument("--rounds", type=int, default=4, help="replays of each case and load (default %(default)s)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="stock and others (all)")
    parser.add_argument("--requests", type=int, default=3, help="of each client in a replay (default %(default)s)")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin no replay after so many seconds")
    parser.add_argument("--loads", type=mix_of, nargs="+", required=True, help="PROMPT/OUTPUT/CLIENTS, LOW-HIGH each")
    parser.add_argument("server_args", nargs="*", help="after --: arguments for both servers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
