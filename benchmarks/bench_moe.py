"""Every MoE runner in turn: does it start with our options, what do they cost, do its rows and fingerprints agree?

For each value of --moe-runner-backend:

  start        the stock server (TESSERA_DISABLE=1) and ours; where one does not start, the reason from its log
  throughput   stock, idle (ours, nobody asks), embed (every request embeds), taking turns; ratios to stock
  rows         embeddings of the same prompts: cosine to those of the first runner in the file, which should be triton
  fingerprints claims made under each runner so far are verified under this one, its own too; with thresholds that are
               calibrated on every other response and judged on the rest

A run can be cut off and repeated: what the file has is not measured again, one runner takes about four minutes, and
--backends picks some. Claims, embeddings and logs lie in a folder beside the file, and a table and a picture
(plot_moe.py) are written at the end. Example:

  python benchmarks/moe_shape.py /models/30b-a3b --layers 24
  python benchmarks/bench_moe.py --model /models/30b-a3b --out benchmarks/results/moe.jsonl --backends triton -- \
      --load-format dummy --mem-fraction-static 0.9 --max-total-tokens 65536

FP8 is a second model (`moe_shape.py --fp8`) and a second file.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import statistics
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np

from load import FIRST_ID, Load, Measured, load_of, run
from plot_moe import records, write
from provenance import provenance
from tessera.fingerprint import calibration
from tessera.fingerprint.thresholds import Thresholds
from tessera.testing import prover
from tessera.testing.server import Server, ServerStartError

RUNNERS = Path(__file__).parents[1] / "docs/moe_runners.toml"
CASES: dict[str, dict[str, Any]] = {
    "stock": {},
    "idle": {},
    "embed": {"return_embedding": {"encoding_format": "base64"}},
}
PROMPTS, LONGEST, LAST_ID = 48, 512, 1000
CLAIMS, CLAIM_TOKENS = 24, 64


def main() -> None:
    """Measure what the file does not have yet."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = {record["backend"] for record in records(options.out)}
    for backend in options.backends:
        if backend in done:
            print(f"{backend}: in {options.out} already")
            continue
        record = measured(backend, options)
        with options.out.open("a") as out:
            print(json.dumps(record), file=out)
        print(json.dumps({name: value for name, value in record.items() if name != "provenance"}))
    write(options.out)


def measured(backend: str, options: argparse.Namespace) -> dict[str, Any]:
    """One runner's record: its figures, or why it did not start."""
    config = json.loads((options.model / "config.json").read_text())
    record: dict[str, Any] = {"backend": backend, "server_args": options.server_args, "model": config}
    record["provenance"] = provenance()
    folder = options.out.with_suffix("")
    folder.mkdir(exist_ok=True)
    args = (*options.server_args, "--moe-runner-backend", backend)
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for case, env, own in (
            ("stock", {"TESSERA_DISABLE": "1"}, ()),
            ("ours", {}, ("--enable-return-hidden-states", "--enable-injection")),
        ):
            log = folder / f"{backend}-{case}.log"
            server = Server(
                options.model, *args, *own, env=env, log_path=log, start_seconds=options.start_seconds, progress=print
            )
            try:
                servers[case] = stack.enter_context(server)
            except ServerStartError as error:
                return record | {"failed": f"{case}, at start", "reason": reason(error.log)}
        urls = {case: server.url for case, server in servers.items()}
        try:
            loads = [throughput(urls, load, options.rounds) for load in options.loads]
            return record | {
                "throughput": loads,
                "rows": rows(urls["ours"], backend, folder),
                "fingerprints": fingerprints(urls["ours"], backend, folder),
            }
        except (aiohttp.ClientError, httpx.HTTPError) as error:
            log = next((server.log for server in servers.values() if "exception" in server.log), repr(error))
            return record | {"failed": "while serving", "reason": reason(log)}


def reason(log: str) -> str:
    """The line of a server's log that says best why it ended: its last error, without time and process."""
    lines = [re.sub(r"^\[[^\]]*\]\s*", "", line).strip() for line in log.splitlines()]
    named = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Exit)\b", line)]
    refused = [line for line in lines if "refusing to start:" in line]
    spoken = [line for line in lines if "error:" in line.lower()]
    return (refused or named or spoken or [line for line in lines if line] or ["an empty log"])[-1][:300]


def throughput(urls: dict[str, str], load: Load, rounds: int) -> dict[str, Any]:
    """Ratios to stock by case: the median of the rounds, least and most."""

    def send(case: str, seed: int, request_seconds: float = 0.0) -> Measured:
        url = urls["stock" if case == "stock" else "ours"]
        return run(url, load, CASES[case], seed, request_seconds, prompts=prompts(load.prompt_tokens, seed))

    names = list(CASES)
    request_seconds = max(send(case, 0).p50 for case in names)
    rates: dict[str, list[float]] = {case: [] for case in names}
    errors = 0
    for i in range(rounds):
        for case in names[i % 3 :] + names[: i % 3]:
            result = send(case, 1 + i, request_seconds)
            rates[case].append(result.requests_per_second)
            errors += result.errors
    found: dict[str, Any] = {"load": str(load), "stock": statistics.median(rates["stock"]), "errors": errors}
    for case in ("idle", "embed"):
        shares = [own / stock for own, stock in zip(rates[case], rates["stock"], strict=True)]
        found[case] = [round(value, 4) for value in (statistics.median(shares), min(shares), max(shares))]
    return found


def prompts(tokens: int, seed: int) -> Iterator[list[int]]:
    """Random ones, without end, of ids that the tiny vocabulary has too."""
    chooser = random.Random(seed)
    while True:
        yield [chooser.randrange(FIRST_ID, LAST_ID) for _ in range(tokens)]


def rows(url: str, backend: str, folder: Path) -> dict[str, Any]:
    """Embeddings of the same prompts: the first runner's, and this one's in another batch, are what they agree with."""
    alone, together = embeddings(url, 1), embeddings(url, PROMPTS)
    np.save(folder / f"{backend}-rows.npy", alone)
    first = folder / "first.json"
    if not first.exists():
        first.write_text(json.dumps(backend))
    reference = json.loads(first.read_text())
    return {
        "reference": reference,
        "to_reference": _cosines(alone, np.load(folder / f"{reference}-rows.npy")),
        "to_itself_in_a_batch": _cosines(alone, together),
    }


def embeddings(url: str, at_once: int) -> np.ndarray[Any, Any]:
    """The means over fixed prompts of 1 to `LONGEST` tokens, ``[PROMPTS, H]``, computed anew."""
    chooser = random.Random("moe")
    lengths = [chooser.randrange(1, LONGEST) for _ in range(PROMPTS)]
    inputs = [[chooser.randrange(FIRST_ID, LAST_ID) for _ in range(length)] for length in lengths]
    found: list[Any] = []
    with httpx.Client(base_url=url, timeout=600) as client:
        client.post("/flush_cache?timeout=30").raise_for_status()
        for start in range(0, PROMPTS, at_once):
            body = {"input_ids": inputs[start : start + at_once], "sampling_params": {"max_new_tokens": 0}}
            answers = client.post("/generate", json=body | {"return_embedding": True}).raise_for_status().json()
            found += [answer["meta_info"]["embedding"] for answer in answers]
    return np.array(found)


def _cosines(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> dict[str, float]:
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {"least": round(float(cosines.min()), 6), "median": round(float(np.median(cosines)), 6)}


def fingerprints(url: str, backend: str, folder: Path) -> dict[str, Any]:
    """By the runner that made them: how many responses pass here, with calibrated and with the paper's limits."""
    made = prover.ask(url, CLAIMS, CLAIM_TOKENS)
    (folder / f"{backend}-claims.json").write_text(json.dumps([one._asdict() for one in made]))
    found = {}
    for path in sorted(folder.glob("*-claims.json")):
        responses = [prover.Response(**one) for one in json.loads(path.read_text())]
        httpx.post(f"{url}/flush_cache?timeout=30", timeout=60).raise_for_status()
        distances = prover.check(url, responses)
        limits = calibration.thresholds(distances[::2])
        judged = distances[1::2]
        found[path.name.removesuffix("-claims.json")] = {
            "thresholds": {name: round(value, 5) for name, value in asdict(limits).items()},
            "passed": calibration.accepted(judged, limits),
            "passed_by_the_paper": calibration.accepted(judged, Thresholds()),
            "of": len(judged),
        }
    return found


def _options() -> argparse.Namespace:
    known = [one["name"] for one in tomllib.loads(RUNNERS.read_text())["runner"] if one["option"]]
    known.sort(key=lambda name: name != "triton")  # the reference first
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder, for both servers")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each runner; added to")
    parser.add_argument("--backends", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each case and load (default 3)")
    parser.add_argument("--start-seconds", type=float, default=240.0, help="patience with a start (default 240)")
    parser.add_argument(
        "--loads",
        type=load_of,
        nargs="+",
        default=[load_of(text) for text in ("128/128/32", "512/1/32")],
        help="PROMPT/OUTPUT/CLIENTS[/SECONDS], SECONDS by default 6 (default 128/128/32 512/1/32)",
    )
    parser.add_argument("server_args", nargs="*", help="after --: arguments for both servers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
