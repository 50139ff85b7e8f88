"""TileSpec under mixed traffic that comes and goes: servers of `bench_tilespec up`, taking turns.

    python -m tilespec.steady --prompts /tmp/prompts.json --out /tmp/steady.jsonl --clients 8 64 --outputs 64-192 \
        --temperature 1 --rounds 4 --limit 500

A closed loop (`bench_steady.py`): each client sends its next request when its last one was answered, and every setting
replays the same prompts and lengths in a round. Writes a JSON line for each measurement, and prints what `--ours`
reaches over the better of all other settings: the better one is chosen by its mean over all rounds.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_steady import Lengths, Mix, Replayed, lengths_of, mix_of, replay
from frozen import freeze
from load import Call, Send, prepared, turns
from provenance import note, provenance, show
from tilespec.bench_tilespec import STATE, places_of
from tilespec.prompts import Prompts, read_prompts


def main() -> None:
    """Measure each load with each setting, in turns."""
    options = _options()
    deadline = time.monotonic() + options.limit
    state = json.loads(STATE.read_text(encoding="utf-8"))
    urls = {name: place.url for name, place in places_of(state, options.settings or list(state["running"])).items()}
    prompts = read_prompts(options.prompts)
    with options.out.open("a", encoding="utf-8") as out:
        note(provenance() | {name: state[name] for name in ("algorithm", "arguments")}, out)
        for mix in (mix_of(f"1-1/{output}/{clients}") for output in options.outputs for clients in options.clients):
            measured: dict[str, list[Replayed]] = {name: [] for name in urls}
            for url in urls.values():
                _replay(url, mix, mix.clients, prompts, "warm-up", options)
            freeze(urls.values())
            for number, name in turns(list(urls), options.rounds):
                if time.monotonic() > deadline:
                    break
                found = _replay(urls[name], mix, mix.clients * options.requests, prompts, f"{mix} {number}", options)
                measured[name].append(found)
                load = {"clients": mix.clients, "output": mix.output, "kind": options.kind}
                note(load | {"setting": name, "round": number} | found._asdict(), out)
            for line in _summary(mix, measured, options):
                show({"summary": line}, out)


def _replay(url: str, mix: Mix, count: int, prompts: Prompts, seed: str, options: argparse.Namespace) -> Replayed:
    lengths = lengths_of(mix, count, seed)
    return replay(url, mix.clients, list(_sends(lengths, prompts, seed, options)), lengths)


def _sends(lengths: list[Lengths], prompts: Prompts, seed: str, options: argparse.Namespace) -> Iterator[Send]:
    """Settings see the same prompts, each behind a tag of its own: nothing is cached."""
    drawn = prompts.draw(options.kind, seed)
    for own in lengths:
        sampling: dict[str, Any] = {
            "max_new_tokens": own.output,
            "temperature": options.temperature,
            "ignore_eos": True,
        }
        yield prepared(Call("/generate", {"input_ids": next(drawn), "sampling_params": sampling}, {}), {})


def _summary(mix: Mix, measured: dict[str, list[Replayed]], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    rates = {
        name: [own.output_tokens_per_second for own in found] for name, found in measured.items() if len(found) > 1
    }
    others = [name for name in rates if name not in options.ours]
    if not others:
        return
    best = max(others, key=lambda name: statistics.mean(rates[name]))
    for name, own in rates.items():
        ratios = [rate / other for rate, other in zip(own, rates[best], strict=False)]
        yield {
            "load": f"{mix.clients} clients, {mix.output[0]} to {mix.output[1]} tokens, {options.kind}",
            "setting": name,
            "output_tokens_per_second": statistics.median(own),
            "best_other": best,
            "over_best": round(statistics.mean(ratios), 4),
            "standard_error": round(statistics.stdev(ratios) / math.sqrt(len(ratios)), 4),
            "each": [round(ratio, 3) for ratio in ratios],
            "p99": statistics.median(one.p99 for one in measured[name]),
            "errors": sum(one.errors for one in measured[name]),
        }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="file that prompts.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended")
    parser.add_argument("--settings", nargs="+", help="of those that are up (default: all)")
    parser.add_argument(
        "--ours", nargs="+", default=["tile", "tile-rejecting"], help="judged by the best of the others"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--outputs", nargs="+", default=["64-192"], help="tokens, LOW-HIGH (default %(default)s)")
    parser.add_argument("--kind", default="mixed", choices=["easy", "mixed", "hard"])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=4, help="of each client in a replay (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--limit", type=float, default=math.inf, help="begin no replay after so many seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
