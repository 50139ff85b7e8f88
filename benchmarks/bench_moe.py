"""Every MoE runner: does it start with our options, do its rows and fingerprints agree, what do our options cost?

For each value of --moe-runner-backend, in two stages:

  agreement    ours starts, several runners side by side; where one does not, the stock server (TESSERA_DISABLE=1) is
               tried too, and the reason comes from its log. Embeddings of the same prompts: alone, in a batch, and
               their cosine to those of the reference, `triton`. Claims made under each runner so far are verified under
               this one, its own too; with thresholds calibrated on every other response and judged on the rest
  throughput   stock and ours of up to half as many runners are started side by side; then, one runner after another,
               stock, idle (ours, nobody asks) and embed (every request embeds) take turns; ratios to stock. A runner
               whose embeddings are bit for bit those of an earlier one runs its kernels, and is not measured again.
               --loads without a load leaves this stage out

No server starts while throughput is measured. A run can be cut off and repeated: what the file has is not measured
again, and --backends picks some. Claims, embeddings and logs lie in a folder beside the file, and a table and a picture
(plot_moe.py) are written at the end. It fails if a runner's embeddings are further from the reference's than stated
noise (`moe_agreement.NOISE`). `make bench-moe` does this:

  python benchmarks/moe_shape.py /tmp/tessera-30b-a3b --layers 8
  python benchmarks/bench_moe.py --model /tmp/tessera-30b-a3b --out benchmarks/results/moe.jsonl -- \
      --cuda-graph-bs-decode 8 16 24 32 --cuda-graph-backend-prefill=disabled \
      --mem-fraction-static 0.9 --max-total-tokens 65536

FP8 is a second model (`moe_shape.py --fp8`) and a second file.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx

import moe_agreement
from load import Cases, Load, load_of, take_turns, warm_up
from plot_moe import records, write
from provenance import note, provenance
from rig import Fleet, new_server
from tessera.launching.server import Server, ServerStartError

RUNNERS = Path(__file__).parents[1] / "docs/reference/moe_runners.toml"
CASES: dict[str, dict[str, Any]] = {
    "stock": {},
    "idle": {},
    "embed": {"return_embedding": {"encoding_format": "base64"}},
}
SERVERS = {"stock": "stock", "ours": "rows-injecting"}
"""Which variant of `rig.VARIANTS` is meant."""

WARM_UPS, MOST_WARM_UPS = 6, 60
"""So many in a row take equally long before anything is measured; and after how many that is given up."""
MOST_UNSTEADY = 1.2
"""How much longer than the shortest the longest of them may take."""
FIRST_WARM_UP = 1000
"""Seeds of their prompts: what is measured has others."""

Add = Callable[[str, dict[str, Any]], None]
"""Writes what was found of a runner."""


def main() -> None:
    """Measure what the file does not have yet."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    folder: Path = options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((options.model / "config.json").read_text())
    common = {"server_args": options.server_args, "model": config, "provenance": provenance()}
    begin = time.perf_counter()

    def add(backend: str, found: dict[str, Any]) -> None:
        with options.out.open("a") as out:
            note({"backend": backend} | found | common, out)
        print(f"{time.perf_counter() - begin:.0f} s", json.dumps({"backend": backend} | found), flush=True)

    try:
        measure(options, folder, add)
    finally:
        if options.out.exists():
            write(options.out)
    found = {one["backend"]: one["rows"] for one in records(options.out) if "rows" in one}
    apart = [name for name, rows in found.items() if moe_agreement.beyond_noise(rows)]
    if apart:
        raise SystemExit(f"other embeddings than the reference's, beyond {moe_agreement.NOISE}: {', '.join(apart)}")


def measure(options: argparse.Namespace, folder: Path, add: Add) -> None:
    """Both stages, and the comparison between them, for what is not in the file.

    With the file alone, without the folder, throughput can still be measured of the runners whose agreement is known.
    """

    def having(part: str) -> list[str]:
        found = {record["backend"] for record in records(options.out) if part in record}
        return [backend for backend in options.backends if backend in found]

    settled = [*having("failed"), *having("fingerprints")]
    agree([backend for backend in options.backends if backend not in settled], options, folder, add)
    known = {record["backend"]: record for record in records(options.out)}
    started = [name for name in options.backends if "fingerprints" in known.get(name, {})]
    rows: dict[str, dict[str, Any]] = {name: known[name].get("rows", {}) for name in started}
    if not all(rows.values()):
        rows = moe_agreement.compared(started, folder)
        for backend, found in rows.items():
            if known[backend].get("rows") != found:
                add(backend, {"rows": found})
    if options.loads:
        settled = [*having("failed"), *having("throughput")]
        compare([name for name in started if name not in settled and not rows[name]["bits_of"]], options, folder, add)


def agree(backends: Sequence[str], options: argparse.Namespace, folder: Path, add: Add) -> None:
    """The first stage: what each runner gives, some at a time."""
    pool = ThreadPoolExecutor(options.at_once)
    with Fleet() as fleet:
        try:
            futures = {pool.submit(_agreement, name, fleet, options, folder): name for name in backends}
            for done in as_completed(futures):
                add(futures[done], done.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _agreement(backend: str, fleet: Fleet, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What it gives, or why it did not start; then also whether the stock server does."""
    try:
        with (
            fleet.serving(_server(backend, "ours", options, folder), options.start_seconds) as server,
            _with_reason(server),
        ):
            return moe_agreement.measured(server.url, backend, folder)
    except _ServingError as error:
        return {"failed": "while serving", "reason": str(error)}
    except ServerStartError as error:
        ours = reason(error.log)
    try:
        with fleet.serving(_server(backend, "stock", options, folder), options.start_seconds):
            return {"failed": "ours, at start", "reason": ours}
    except ServerStartError as error:
        return {"failed": "stock, at start", "reason": reason(error.log)}


def compare(backends: Sequence[str], options: argparse.Namespace, folder: Path, add: Add) -> None:
    """The second stage: groups of runners, whose servers are all started before the first is measured."""
    size = max(options.at_once // len(SERVERS), 1)
    for begin in range(0, len(backends), size):
        group = backends[begin : begin + size]
        with Fleet() as fleet:
            pairs = {name: {case: _server(name, case, options, folder) for case in SERVERS} for name in group}
            for server in [server for pair in pairs.values() for server in pair.values()]:
                fleet.start(server)
            ready = {name: _failure(pair, options.start_seconds) for name, pair in pairs.items()}
            for name, failed in ready.items():
                add(name, failed or _throughput(pairs[name], options))


def _failure(pair: dict[str, Server], seconds: float) -> dict[str, Any] | None:
    """Wait for both: why one of them did not start."""
    for case, server in pair.items():
        try:
            server.wait_ready(seconds)
        except ServerStartError as error:
            return {"failed": f"{case}, at start beside others", "reason": reason(error.log)}
    return None


def _throughput(pair: dict[str, Server], options: argparse.Namespace) -> dict[str, Any]:
    urls = {case: pair["stock" if case == "stock" else "ours"].url for case in CASES}
    try:
        with _with_reason(*pair.values()):
            return {"throughput": [ratios(urls, load, options.rounds) for load in options.loads]}
    except _ServingError as error:
        return {"failed": "while serving", "reason": str(error)}


class _ServingError(RuntimeError):
    """A server that had started did not answer as it should; the message has the reason from its log."""


@contextmanager
def _with_reason(*servers: Server) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, httpx.HTTPError, TimeoutError, RuntimeError) as error:
        log = next((server.log for server in servers if "exception" in server.log), repr(error))
        raise _ServingError(reason(log)) from error


def _server(backend: str, case: str, options: argparse.Namespace, folder: Path) -> Server:
    args = [*options.server_args, "--moe-runner-backend", backend]
    return new_server(SERVERS[case], options.model, args, folder / f"{backend}-{case}.log")


def reason(log: str) -> str:
    """What a server's log says best of why it ended: its last error with the line below, without time and process."""
    lines = [re.sub(r"^\[[^\]]*\]\s*", "", line).strip() for line in log.splitlines()]
    named = [i for i, line in enumerate(lines) if re.match(r"(\w+\.)*\w*(Error|Exception|Exit)\b", line)]
    refused = [i for i, line in enumerate(lines) if "refusing to start:" in line]
    spoken = [i for i, line in enumerate(lines) if "error:" in line.lower()]
    best = refused or named or spoken or [i for i, line in enumerate(lines) if line]
    if not best:
        return "an empty log"
    below = log.splitlines()[best[-1] + 1 : best[-1] + 2] if best is named else []
    return " ".join([lines[best[-1]], *(line for line in below if re.match(r"(?!Traceback)\w", line))])[:300]


def steady(cases: Cases, load: Load) -> float:
    """Warm up until requests take as long as they did the times before: `load.warm_up`'s seconds.

    Triton compiles the experts' kernel for counts of tokens that 16 divides and for those that it does not, a second or
    two each time, in any of the first dozens of prefills.
    """
    seconds: list[float] = []
    while len(seconds) < WARM_UPS or max(seconds[-WARM_UPS:]) > MOST_UNSTEADY * min(seconds):
        if len(seconds) == MOST_WARM_UPS:
            raise _ServingError(f"requests take {seconds[-WARM_UPS:]} s, the shortest took {min(seconds)}")
        seconds.append(warm_up(cases, load, FIRST_WARM_UP + 10 * len(seconds)))
    return seconds[-1]


def ratios(urls: dict[str, str], load: Load, rounds: int) -> dict[str, Any]:
    """Ratios to stock by case: the median of the rounds, least and most. No prompt comes twice: it would be cached."""
    cases = {case: (urls[case], extra) for case, extra in CASES.items()}
    request_seconds = steady(cases, load)
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    errors, stolen = 0, 0.0
    for case, _, result in take_turns(cases, load, rounds, request_seconds):
        rates[case].append(result.requests_per_second)
        errors += result.errors
        stolen = max(stolen, result.stolen)
    found: dict[str, Any] = {"load": str(load), "stock": statistics.median(rates["stock"]), "errors": errors}
    for case in ("idle", "embed"):
        shares = [own / stock for own, stock in zip(rates[case], rates["stock"], strict=True)]
        found[case] = [round(value, 4) for value in (statistics.median(shares), min(shares), max(shares))]
    return found | {"stolen_most": stolen}


def _options() -> argparse.Namespace:
    known = [one["name"] for one in tomllib.loads(RUNNERS.read_text())["runner"] if one["option"]]
    known.sort(key=lambda name: name != "triton")  # the reference first
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, for all servers")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, some for each runner; added to")
    parser.add_argument("--backends", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--at-once", type=int, default=6, help="servers side by side (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each case and load (default 3)")
    parser.add_argument("--start-seconds", type=float, default=240.0, help="patience with a start (default 240)")
    parser.add_argument(
        "--loads",
        type=load_of,
        nargs="*",
        default=[load_of(text) for text in ("128/128/32/3", "512/1/32/3")],
        help="PROMPT/OUTPUT/CLIENTS[/SECONDS], SECONDS by default 6 (default 128/128/32/3 512/1/32/3)",
    )
    parser.add_argument("server_args", nargs="*", help="after --: arguments for all servers")
    options = parser.parse_args()
    options.backends = sorted(options.backends, key=known.index)
    return options


if __name__ == "__main__":
    main()
