"""TileSpec beside no speculation and beside fixed numbers of draft tokens: servers side by side, taking turns.

    python -m tilespec.bench_tilespec up   --models /tmp/wide --settings none k1 k3 tile --algorithm EAGLE
    python -m tilespec.bench_tilespec run  --prompts /tmp/prompts.json --out /tmp/eagle-a.jsonl --limit 500
    python -m tilespec.bench_tilespec down

Servers without speculation and with fixed numbers are stock SGLang (`TESSERA_DISABLE=1`).

`up` leaves the servers running, so that `run` may be called again: it takes up where --out ends, and stops before
--limit seconds have passed. `--only clients=64 kind=hard` narrows it. Four servers of 8B shape fit on one H200, eight
with `--share-weights` (131 of 139 GiB); they are spread over the GPUs of CUDA_VISIBLE_DEVICES, and each value of it has
servers of its own: several of these may run side by side. All start at once; those with TileSpec measure the GPU's
times one after the other, when nothing else works there (`profile_gate.py`). A setting that is up with rejection
sampling and without it is measured with it where tokens are sampled, and without it where they are not.
Every measurement is one JSON line; the first line says where the file comes from.
"""

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from frozen import freeze
from processors import processor_time, stolen_since
from provenance import note, provenance
from rig import end
from tessera.launching.command import gpu_present
from tessera.launching.server import Server, ServerStartError
from tilespec import forced, plugins, profile_gate, progress, shared_weights, thread_profile, without
from tilespec.decode import Decoded, Decoding, Place, decode, send
from tilespec.prompts import Prompts, read_prompts
from tilespec.settings import ALGORITHMS, NAMES, measured_at, server_arguments, server_environment

DEVICES = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
STATE = Path(f"/tmp/tilespec-bench-{'-'.join(DEVICES)}.json")  # noqa: S108 - on a machine of our own
STAGGER_SECONDS = 4.0
WARM_UP_TOKENS = 32
FEWEST_WAVES = 3
LONGEST_CELL = 15.0
"""Seconds that a measurement may take, until a longer one was seen."""
MOST_CACHED = 0.03
"""The share of prompt tokens that may come from the prefix cache: the first tokens of tags."""


class Cell(NamedTuple):
    """One thing to measure."""

    temperature: float
    kind: str
    clients: int
    round: int
    setting: str


def main() -> None:
    """Do what the first argument says."""
    options = _options()
    {"up": up, "run": measure, "down": down}[options.action](options)


def up(options: argparse.Namespace) -> None:
    """Start one server for each setting and leave them running."""
    if options.share_weights and len(DEVICES) > 1:
        raise SystemExit(f"--share-weights is for servers of one GPU, and CUDA_VISIBLE_DEVICES has {len(DEVICES)}")
    if "tile-before" in options.settings and options.before is None:
        raise SystemExit("tile-before needs --before DIR, another checkout")
    servers = {name: _server(place, name, options) for place, name in enumerate(options.settings)}
    gates = {name: _gate(name, options) for name in options.settings if _is_tile(name)}
    with ExitStack() as undo:
        for server in servers.values():
            undo.callback(server.stop)
            server.start()
            time.sleep(STAGGER_SECONDS)
        for name, server in servers.items():
            if name not in gates:
                server.wait_ready(options.start_seconds)
        for name, gate in gates.items():
            _wait_arrived(servers[name], gate, options.start_seconds)
        for name, gate in gates.items():
            profile_gate.let_go(gate)
            servers[name].wait_ready(options.start_seconds)
        undo.pop_all()
    spoken = ("progress", *(("forced", "profiled") if options.measure_thread else ()))
    running = {
        name: {"url": servers[name].url, "pid": servers[name].pid}
        | {kind: str(_beside_logs(name, kind, options)) for kind in spoken}
        for name in options.settings
    }
    arguments = {name: _arguments(name, options) for name in options.settings}
    STATE.write_text(
        json.dumps({"algorithm": options.algorithm, "running": running, "arguments": arguments}), encoding="utf-8"
    )


def measure(options: argparse.Namespace) -> None:
    """Measure every cell that the file does not have yet, while time is left."""
    begin = time.monotonic()
    state = json.loads(STATE.read_text(encoding="utf-8"))
    prompts = read_prompts(options.prompts)
    done = _done(options.out)
    longest = LONGEST_CELL
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = options.settings or list(state["running"])
    places = places_of(state, settings)
    _warm_up(places, prompts, options)
    with options.out.open("a", encoding="utf-8") as out:
        if not done:
            first = provenance() | {name: state[name] for name in ("algorithm", "arguments")}
            first |= {"prompts": {"entropy": prompts.entropy, "looping": prompts.looping}}
            note(first, out)
        for cell in _cells(options, settings):
            if cell in done:
                continue
            if time.monotonic() - begin + longest > options.limit:
                print(f"out of time; call again to go on with {cell}", flush=True)
                return
            started = time.monotonic()
            try:
                _measure_cell(cell, places[cell.setting], prompts, options, out)
            except RuntimeError as error:
                print(f"{cell}: {error}", flush=True)
                note(cell._asdict() | {"failed": str(error)}, out)
            longest = max(longest, time.monotonic() - started)
    print("all cells are measured", flush=True)


def down(_: argparse.Namespace) -> None:
    """Stop the servers that `up` left running."""
    end([server["pid"] for server in json.loads(STATE.read_text(encoding="utf-8"))["running"].values()])
    STATE.unlink()


def waves(setting: str, clients: int) -> int:
    """How many waves a load is measured in: of 1 client 32, of 32 clients and more 3, whoever drafts.

    The number is the same for all settings, for then they decode the same prompts: when waves came until some time had
    passed, fast settings had more of them, of other texts. What is accepted differs by 15 % from text to text (also of
    greedy ones, after the first near-tie that is rounded otherwise), so few clients need many waves; but a wave of few
    takes half as long as one of 32. Of 16 waves of one client a ratio has a standard error of 2 to 4 %, of 5 waves of
    128 one of 0.5 to 1 %. Times without speculation do not depend on texts: a quarter is enough.
    """
    number = max(FEWEST_WAVES, math.ceil(32 / math.pow(clients, 0.75)))
    return max(1, number // 4) if setting == "none" else number


def places_of(state: dict[str, Any], settings: Iterable[str]) -> dict[str, Place]:
    """Where the servers of some settings are, by what `up` wrote."""
    running = {name: state["running"][name] for name in settings}
    return {name: Place(of["url"], Path(of["progress"])) for name, of in running.items()}


def _warm_up(places: dict[str, Place], prompts: Prompts, options: argparse.Namespace) -> None:
    """A wave of each number of clients to each server: a first one takes up to 0.1 s longer there, without TileSpec.

    Besides, TileSpec has seen drafts that are accepted, or that are not.
    """
    for temperature, clients in itertools.product(options.temperatures, options.clients):
        wave = Decoding(clients, WARM_UP_TOKENS, temperature, waves=1)
        for name in measured_at(temperature, list(places)):
            send(places[name], wave, prompts.draw(options.kinds[0], f"warm-up {temperature} {clients}"))
    freeze(place.url for place in places.values())


def _measure_cell(cell: Cell, place: Place, prompts: Prompts, options: argparse.Namespace, out: TextIO) -> None:
    load = Decoding(cell.clients, options.tokens, cell.temperature, waves(cell.setting, cell.clients))
    # The same prompts for each setting, which are servers of their own.
    drawn = prompts.draw(cell.kind, f"{cell.temperature} {cell.clients} {cell.round}")
    before = processor_time()
    found = decode(place, load, drawn)
    record = cell._asdict() | _record(found, load) | {"stolen": stolen_since(before)}
    if record["cached_share"] > MOST_CACHED:
        raise SystemExit(f"not a fair measurement: {record}")
    note(record, out)
    print(json.dumps({name: record[name] for name in (*cell._fields, "output_tokens_per_second", "accept_length")}))


def _record(found: Decoded, load: Decoding) -> dict[str, Any]:
    """Rates of all windows and of each, their steps, tokens of a request in one, and the share of prompts cached.

    Also what a step costs the scheduler's thread to launch: TileSpec's decision is a part of it.
    """
    prompt_tokens = sum(meta["prompt_tokens"] for meta in found.metas)
    return {
        "output_tokens_per_second": round(found.tokens / found.seconds, 1),
        "each_wave": [round(wave.tokens / wave.seconds, 1) for wave in found.windows if wave.seconds],
        "window_seconds": round(found.seconds, 3),
        "requests": len(found.metas),
        "tokens_each": round(found.tokens / len(found.metas), 1),
        "accept_length": round(found.tokens / found.steps / load.clients, 4),
        "step_milliseconds": round(1e3 * found.seconds / found.steps, 3),
        "launch_microseconds": round(1e6 * found.launch, 1),
        "cached_share": round(sum(meta["cached_tokens"] for meta in found.metas) / max(1, prompt_tokens), 4),
    }


def _cells(options: argparse.Namespace, settings: list[str]) -> Iterator[Cell]:
    """In order: each load with every setting of its temperature, the first setting another one each time."""
    wanted = dict(pair.split("=", 1) for pair in options.only)
    loads = itertools.product(range(options.rounds), options.clients, options.kinds, options.temperatures)
    for turn, (number, clients, kind, temperature) in enumerate(loads):
        measured = measured_at(temperature, settings)
        first = turn % len(measured)
        for setting in measured[first:] + measured[:first]:
            cell = Cell(temperature, kind, clients, number, setting)
            if all(str(getattr(cell, name)) == value for name, value in wanted.items()):
                yield cell


def _done(path: Path) -> set[Cell]:
    if not path.exists():
        return set()
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {Cell(*(record[name] for name in Cell._fields)) for record in records if "setting" in record}


def _server(place: int, name: str, options: argparse.Namespace) -> Server:
    env = plugins.on_path(options.logs.resolve() / "plugins")
    env |= server_environment(name, gpu=gpu_present())
    env |= progress.noting(_beside_logs(name, "progress", options))
    if options.measure_thread:
        env |= forced.forcing(_beside_logs(name, "forced", options))
        env |= thread_profile.profiling(_beside_logs(name, "profiled", options))
    if gpu_present():
        env["CUDA_VISIBLE_DEVICES"] = DEVICES[place % len(DEVICES)]
    if options.share_weights:
        env |= shared_weights.sharing(options.logs.resolve() / "shared", first=place == 0)
    if _is_tile(name):
        env |= profile_gate.closed(_gate(name, options))
    env[without.WITHOUT] = name.partition("-without-")[2]
    if name == "tile-before":
        env["PYTHONPATH"] = os.pathsep.join([*_source_folders(options.before), env["PYTHONPATH"]])
    log = options.logs / f"{options.algorithm.lower()}-{name}.log"
    return Server(options.models / "target", *_arguments(name, options), env=env, log_path=log, progress=print)


def _arguments(name: str, options: argparse.Namespace) -> tuple[str, ...]:
    trace = ("--tile-spec-trace", str(options.logs / f"{name}.trace.jsonl"))
    return (
        *server_arguments(name, options.algorithm, options.models, gpu=gpu_present()),
        *(trace if options.trace and _is_tile(name) else ()),
        *options.server_args,
    )


def _source_folders(checkout: Path) -> list[str]:
    """Where a checkout has its packages."""
    return [str(checkout.resolve() / folder) for folder in ("python", "patches", "sgl-kernel")]


def _is_tile(name: str) -> bool:
    return name.startswith("tile")


def _gate(name: str, options: argparse.Namespace) -> Path:
    gate: Path = options.logs.resolve() / "gates" / name
    return gate


def _beside_logs(name: str, kind: str, options: argparse.Namespace) -> Path:
    """A file by which the rig and a server's scheduler speak to each other."""
    path: Path = options.logs.resolve() / f"{name}.{kind}"
    return path


def _wait_arrived(server: Server, gate: Path, seconds: float) -> None:
    """Until a server waits at its gate: before that it captures graphs, which the one that measures would feel.

    Raises:
        ServerStartError: it ended, or `seconds` have passed.
    """
    deadline = time.monotonic() + seconds
    while not profile_gate.arrived(gate):
        if server.exit_code is not None or time.monotonic() > deadline:
            raise ServerStartError(f"the server did not come to its gate, {gate}", server.log, server.exit_code)
        time.sleep(0.2)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True, metavar="up|run|down")
    start = actions.add_parser("up", help="start the servers and leave them running")
    start.add_argument("--models", type=Path, required=True, help="folder that pad_target wrote")
    start.add_argument("--settings", nargs="+", choices=NAMES, required=True, help="one server for each")
    start.add_argument("--algorithm", choices=ALGORITHMS, default="EAGLE")
    start.add_argument("--before", type=Path, help="checkout whose TileSpec the setting tile-before starts")
    start.add_argument("--logs", type=Path, default=STATE.with_suffix(""), help="(default %(default)s)")
    start.add_argument("--start-seconds", type=float, default=400.0, help="patience with each (%(default)s)")
    start.add_argument("--trace", action="store_true", help="TileSpec's servers record their steps beside the logs")
    start.add_argument("--share-weights", action="store_true", help="one copy of the target's weights for all")
    start.add_argument("--measure-thread", action="store_true", help="for time_launches.py, and for nothing else")
    start.add_argument("server_args", nargs="*", help="after --: further arguments of every server")
    go = actions.add_parser("run", help="measure; may be called again to go on")
    go.add_argument("--prompts", type=Path, required=True, help="file that prompts.py wrote")
    go.add_argument("--out", type=Path, required=True, help="JSON lines; what is there is not measured again")
    go.add_argument("--settings", nargs="+", help="of those that are up (default: all)")
    go.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64, 128])
    go.add_argument("--kinds", nargs="+", default=["mixed", "hard", "easy"])
    go.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    go.add_argument("--rounds", type=int, default=1)
    go.add_argument("--tokens", type=int, default=96, help="of each request on average (default %(default)s)")
    go.add_argument("--limit", type=float, default=540.0, help="stop before so many seconds (default %(default)s)")
    go.add_argument("--only", nargs="*", default=[], metavar="NAME=VALUE", help="of a cell, for example clients=64")
    actions.add_parser("down", help="stop the servers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
