r"""What an encode costs: what bench_embeddings.py does not measure of measurements/embeddings.md. One piece a run.

  throughput   /encode of 512 tokens, 64 clients, over plain one-token /generate of the same texts on the same server
               and on the stock one, and over the host's matrix ceiling
  cached       latency of an encode of a fully cached prompt of 2,048 tokens over an uncached one, and over plain
               one-token /generate of as many tokens; one request at a time
  states       raw states of 512 tokens, 32 clients: our base64 over the stock server's nested list
  streams      gaps between the tokens of 16 streams while 1,000 encodes run, over 1,000 plain one-token requests
  huggingface  the same vectors from Hugging Face in this process, batch 32; compare with throughput

Cases of a piece take turns; ratios are within one run. Each piece ends within 500 s on an H200 and appends JSON lines.
Dummy weights of an 8B Llama:

  for piece in throughput cached states streams huggingface; do
    python benchmarks/bench_encode.py --piece $piece --model /models/8b --out benchmarks/results/encode.jsonl -- \
      --load-format dummy --attention-backend fa3 --mem-fraction-static 0.4
  done
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import statistics
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

import in_process
import streams
from load import FIRST_ID, LAST_ID, Call, Load, Measured, run, turns, typical_latency
from provenance import provenance, show
from rig import serve_all

Record = dict[str, Any]
BINARY = {"Accept": "application/octet-stream"}
ONE_TOKEN = {"sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}


def main() -> None:
    """Run one piece."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    with options.out.open("a") as out:
        first = provenance() | {"piece": options.piece, "server_args": options.server_args}
        for record in itertools.chain([first], PIECES[options.piece](options)):
            show(record, out)


def throughput(options: argparse.Namespace) -> Iterator[Record]:
    """Encodes beside plain one-token requests of the same texts."""
    ceiling = in_process.matrix_ceiling() / (2 * in_process.parameters(options.model))
    yield {"ceiling_tokens_per_second": round(ceiling, 1)}
    texts = in_process.Texts(options.model, options.tokens)
    load = Load(options.tokens, 1, 64, options.seconds)
    encode, binary, plain = _encodes(texts, {}), _encodes(texts, BINARY), _plain(texts)
    with _servers(options, "stock", "ours") as (stock, ours):
        cases = {"stock": (stock, plain), "plain": (ours, plain), "encode": (ours, encode), "binary": (ours, binary)}
        measured = yield from _take_turns(options.rounds, load, cases)
    for case in ("encode", "binary"):
        yield _figure(f"{case} over plain, same server", _ratios(measured[case], measured["plain"]), 1.0)
        yield _figure(f"{case} over plain, stock server", _ratios(measured[case], measured["stock"]), 1.0)
        shares = [result.input_tokens_per_second / ceiling for result in measured[case]]
        yield _figure(f"{case} over the matrix ceiling", shares, 0.9)


def cached(options: argparse.Namespace) -> Iterator[Record]:
    """One client: each prompt twice, and a plain one."""
    prompts = _prompts(options.long, options.last_id)
    seconds: dict[str, list[float]] = {"plain": [], "uncached": [], "cached": []}
    with _servers(options, "ours") as (url,), httpx.Client(base_url=url, timeout=120) as client:
        for number in range(options.rounds * 10 + 3):
            plain = ("/generate", {"input_ids": next(prompts)} | ONE_TOKEN)
            encode = ("/v1/embeddings", {"input": next(prompts), "encoding_format": "base64"})
            for (case, times), (path, body) in zip(seconds.items(), (plain, encode, encode), strict=True):
                answer = client.post(path, json=body)
                answer.raise_for_status()
                if number >= 3:  # the first ones compile kernels
                    times.append(answer.elapsed.total_seconds())
                    yield {"case": case, "number": number, "seconds": times[-1]}
    medians = {case: statistics.median(times) for case, times in seconds.items()}
    yield {"medians": medians}
    yield _figure("uncached over plain, latency", [medians["uncached"] / medians["plain"]], 1.0)
    yield _figure("fully cached over uncached, latency", [medians["cached"] / medians["uncached"]], 0.15)


def states(options: argparse.Namespace) -> Iterator[Record]:
    """All rows of a prompt, in the form that each server does best."""
    load = Load(options.tokens, 1, 32, options.seconds)
    longer = Load(options.tokens, 1, 32, 4 * options.seconds)  # the stock server needs seconds for each request
    extra = {"return_hidden_states": True}
    with _servers(options, "stock-rows", "ours") as (stock, ours):
        prompts = _prompts(options.tokens, options.last_id)
        slow = run(stock, longer, extra, 1, typical_latency(stock, load, extra, prompts), prompts)
        yield {"case": "stock list", **slow.record(longer)}
        rates = []
        for form in ("base64", "safetensors", "list"):
            own = extra | {"hidden_states_format": form}
            result = run(ours, load, own, 2, typical_latency(ours, load, own, prompts), prompts)
            rates.append(result.requests_per_second / slow.requests_per_second)
            yield {"case": f"ours {form}", **result.record(load)}
    yield _figure("raw states, base64, over stock", rates[:1], 15.0)


def streams_beside(options: argparse.Namespace) -> Iterator[Record]:
    """Streams go on while a load of prefills runs beside them."""
    texts = in_process.Texts(options.model, options.tokens)
    encode, plain = _encodes(texts, BINARY), _plain(texts)
    ratios = []
    with _servers(options, "ours") as (url,):
        for calls in (plain, encode):
            streams.gaps(url, calls, 100, seed=0)
        for number in range(options.rounds):
            p99 = {}
            for case, calls in (("plain", plain), ("encode", encode))[:: 1 if number % 2 else -1]:
                measured = streams.gaps(url, calls, options.requests, seed=1 + number)
                p99[case] = measured["gap_p99"]
                yield {"case": case, "round": number, **measured}
            ratios.append(p99["encode"] / p99["plain"])
    yield _figure("inter-token p99 beside encodes over beside one-token requests", ratios, 1.3)


def hugging_face(options: argparse.Namespace) -> Iterator[Record]:
    """Mean embeddings by Hugging Face's own model of the same shape, no server on the GPU."""
    rates = [in_process.hugging_face(options.model, options.tokens, 32, options.seconds) for _ in range(options.rounds)]
    yield {"case": "Hugging Face in this process, batch 32", "prompts_per_second": rates}
    yield {"input_tokens_per_second": round(statistics.median(rates) * options.tokens, 1)}


PIECES: dict[str, Callable[[argparse.Namespace], Iterator[Record]]] = {
    "throughput": throughput,
    "cached": cached,
    "states": states,
    "streams": streams_beside,
    "huggingface": hugging_face,
}


@contextmanager
def _servers(options: argparse.Namespace, *names: str) -> Iterator[list[str]]:
    with ExitStack() as servers:
        yield serve_all(servers, options, *names, prefix=f"encode-{options.piece}-")


def _encodes(texts: in_process.Texts, headers: dict[str, str]) -> Iterator[Call]:
    while True:
        yield Call("/encode", {"text": texts.fresh()}, headers)


def _plain(texts: in_process.Texts) -> Iterator[Call]:
    while True:
        yield Call("/generate", {"text": texts.fresh()} | ONE_TOKEN, {})


Cases = dict[str, tuple[str, Iterator[Call]]]


def _take_turns(rounds: int, load: Load, cases: Cases) -> Generator[Record, None, dict[str, list[Measured]]]:
    """Measure each case so many times, in a different order each round. Returns the results by case."""
    seconds = max(run(url, load, {}, 0, calls=calls).p50 for url, calls in cases.values())
    measured: dict[str, list[Measured]] = {case: [] for case in cases}
    for number, case in turns(list(cases), rounds):
        url, calls = cases[case]
        result = run(url, load, {}, 1 + number, seconds, calls=calls)
        measured[case].append(result)
        yield {"case": case, "round": number, **result.record(load)}
    return measured


def _prompts(tokens: int, last_id: int) -> Iterator[list[int]]:
    chooser = random.Random(1)
    while True:
        yield [chooser.randrange(FIRST_ID, last_id) for _ in range(tokens)]


def _ratios(ours: list[Measured], theirs: list[Measured]) -> list[float]:
    return [a.requests_per_second / b.requests_per_second for a, b in zip(ours, theirs, strict=True)]


def _figure(name: str, values: list[float], goal: float) -> Record:
    rounded = [round(value, 4) for value in values]
    median = round(statistics.median(values), 4)
    return {"figure": name, "median": median, "least": min(rounded), "most": max(rounded), "goal": goal}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--piece", choices=PIECES, required=True, help="which of the above")
    parser.add_argument("--model", type=Path, required=True, help="model folder with its tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added here, server logs lie beside it")
    parser.add_argument("--rounds", type=int, default=4, help="measurements of each case (default 4)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one measurement (default 8)")
    parser.add_argument("--tokens", type=int, default=512, help="in a prompt (default 512)")
    parser.add_argument("--long", type=int, default=2048, help="in a prompt of the piece cached (default 2048)")
    parser.add_argument("--last-id", type=int, default=LAST_ID, help="largest token id in random prompts")
    parser.add_argument("--requests", type=int, default=1000, help="beside the streams (default 1000)")
    parser.add_argument("server_args", nargs="*", help="after --: arguments for every server")
    return parser.parse_args()


if __name__ == "__main__":
    main()
