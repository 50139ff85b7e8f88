"""What a decode step takes with each of our options, while nobody asks for anything: on the clock, and on the GPU.

Servers take turns with waves of the same prompts; what counts is what all requests of a wave decode together. `stock`
may be named twice: how far two servers that are the same lie apart says what a difference means. On a GPU a few steps
of each server are traced too (`gpu_trace.py`): how long the GPU is busy in a step, and which kernels take longer than
in the first server. A step that takes longer while the GPU is not busy for longer waits for the host.

  python benchmarks/bench_decode.py --model /tmp/m30b-moe --out decode.jsonl --servers stock stock ours injecting -- \
      --moe-runner-backend triton --cuda-graph-bs-decode 32 --cuda-graph-backend-prefill=disabled
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_trace import GpuTime, read_trace
from load import Load, random_prompts, turns
from provenance import note, provenance, show
from rig import VARIANTS, Fleet, new_server
from tessera.launching.command import gpu_present
from tilespec import plugins, progress
from tilespec.decode import Decoding, Place, decode
from tilespec.tracing import STEPS, trace

WARM_UPS = 3
SHOWN_KERNELS = 5


def main() -> None:
    """Start the servers, measure, trace, print."""
    options = _options()
    names = [f"{variant}-{place}" for place, variant in enumerate(options.servers)]
    with Fleet() as fleet, options.out.open("w", encoding="utf-8") as out:
        note(provenance() | {"server_args": options.server_args}, out)
        servers = {}
        notes = {name: _beside(f"{name}.progress", options) for name in names}
        for name, variant in zip(names, options.servers, strict=True):
            env = plugins.on_path(_beside("plugins", options)) | progress.noting(notes[name])
            log = _beside(f"{name}.log", options)
            servers[name] = new_server(variant, options.model, options.server_args, log, env)
            fleet.start(servers[name])
        for server in servers.values():
            server.wait_ready()
        places = {name: Place(server.url, notes[name]) for name, server in servers.items()}
        steps = _steps(places, options)
        first = statistics.median(steps[names[0]])
        for name, found in steps.items():
            step = statistics.median(found)
            figures = {"step_us": step, "least": min(found), "most": max(found)}
            line = {what: round(us, 1) for what, us in figures.items()}
            show({"server": name} | line | {"of_the_first": round(first / step, 4)}, out)
        if gpu_present():
            for line in _on_the_gpu(places, options):
                show(line, out)


def _beside(name: str, options: argparse.Namespace) -> Path:
    out: Path = options.out.resolve()
    return out.with_name(f"{out.stem}-{name}")


def _steps(places: dict[str, Place], options: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of a step, in each round."""
    found: dict[str, list[float]] = {name: [] for name in places}
    load = Decoding(options.clients, options.tokens, 0.0, options.waves)
    for number, name in turns(list(places), WARM_UPS + options.rounds):
        result = decode(places[name], load, _prompts(options, number))
        if number >= WARM_UPS:
            found[name].append(1e6 * result.seconds / result.steps)
    return found


def _on_the_gpu(places: dict[str, Place], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each server: a step's microseconds, the busy ones, and the kernels that gained most over the first."""
    traced = {name: _traced(place, options) for name, place in places.items()}
    first = next(iter(traced.values()))
    for name, found in traced.items():
        gained = found.kernels.copy()
        gained.subtract(first.kernels)
        yield {
            "server": name,
            "gpu_step_us": round(found.wall / STEPS, 1),
            "gpu_busy_us": round(found.busy / STEPS, 1),
            "gained_us": {what[:100]: round(us / STEPS, 1) for what, us in gained.most_common(SHOWN_KERNELS)},
        }


def _traced(place: Place, options: argparse.Namespace) -> GpuTime:
    load = Decoding(options.clients, options.tokens, 0.0, waves=1)
    prompts = _prompts(options, WARM_UPS + options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        return read_trace(trace(place, load, prompts, Path(folder), options.prefill_seconds, ("GPU",)))


def _prompts(options: argparse.Namespace, number: int) -> Iterator[list[int]]:
    return random_prompts(Load(options.prompt, options.tokens, options.clients, seconds=0.0), number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here, the servers' logs beside it")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    servers = ("stock", "stock", "ours", "injecting", "rows-injecting")
    parser.add_argument("--servers", nargs="+", choices=VARIANTS, default=servers, help=f"default: {' '.join(servers)}")
    parser.add_argument("--clients", type=int, default=32, help="requests of a wave (default %(default)s)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt (default %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=192, help="tokens of each answer that count (default %(default)s)"
    )
    parser.add_argument("--waves", type=int, default=2, help="of a window (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="windows of each server (default %(default)s)")
    parser.add_argument("--prefill-seconds", type=float, default=0.2, help="until a wave decodes (default %(default)s)")
    parser.add_argument("server_args", nargs="*", help="after --: arguments of every server")
    return parser.parse_args()


if __name__ == "__main__":
    main()
