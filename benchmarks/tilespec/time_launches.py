"""What a decode step costs the scheduler's thread: real servers, TileSpec's with choices that are given.

    python -m tilespec.bench_tilespec up --models /tmp/wide --algorithm EAGLE3 --settings k7 tile --measure-thread
    python -m tilespec.time_launches --prompts /tmp/prompts.json --out launches.jsonl

Waves of 64 clients take turns: of the fixed setting, of TileSpec in graphs of one length, and of TileSpec in ragged
ones, all with 7 drafted tokens, greedy and sampled. A wave's numbers are medians over its steps: "launch_us" of the
thread's time in ``Scheduler.run_batch``, "process_us" of that in ``process_batch_result`` once the outcome has come,
"both_us" their sum; "mean_us", the mean of all its steps; and "step_us", the time from one step to the next. Given are
means over waves, with "errors_us", their standard errors, and "median_us" of both: where something else disturbs the
host, a wave has up to 1 ms more. The schedulers' threads have a processor for themselves, the same one: they take
turns, and what a thread finds in its caches matters more than what it does. At the end some steps of each are profiled,
and files for `pstats` written beside --out.
"""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from provenance import note, provenance, show
from tilespec import bench_tilespec
from tilespec.bench_tilespec import places_of
from tilespec.decode import Decoding, Place, Window, decode
from tilespec.forced import Forced, force
from tilespec.pinning import pin_schedulers
from tilespec.prompts import Prompts, read_prompts
from tilespec.thread_profile import Wanted, profile

STEPS = 7
RAGGED_SHARE = 0.5
"""Of the drafted tokens, so many are verified in a ragged graph."""
KIND = "mixed"


class Way(NamedTuple):
    """How steps are launched."""

    what: str
    setting: str
    tier: int | None = None


def ways(settings: list[str], clients: int) -> list[Way]:
    """Of fixed settings their own; of TileSpec's both."""
    ragged = int(clients * (STEPS + 1) * RAGGED_SHARE)
    found = []
    for name in settings:
        if name.startswith("tile"):
            found += [Way(f"{name}, all", name), Way(f"{name}, {ragged} tokens", name, ragged)]
        else:
            found.append(Way(name, name))
    return found


def main() -> None:
    """Alternate, and print."""
    options = _options()
    state = json.loads(bench_tilespec.STATE.read_text(encoding="utf-8"))
    if not all("forced" in server for server in state["running"].values()):
        raise SystemExit("these servers choose by themselves: start them with --measure-thread")
    places, prompts = places_of(state, state["running"]), read_prompts(options.prompts)
    pin_schedulers([server["pid"] for server in state["running"].values()])
    found = ways(list(places), options.clients)
    with options.out.open("w", encoding="utf-8") as out:
        note(provenance() | {"clients": options.clients, "drafts": STEPS, "waves": options.waves}, out)
        for temperature in options.temperatures:
            load = Decoding(options.clients, options.tokens, temperature, waves=1)
            windows: dict[str, list[Window]] = {way.what: [] for way in found}
            for wave in range(options.waves + 1):  # the first one warms up
                for way in found:
                    drawn = prompts.draw(KIND, f"launches {temperature} {wave}")
                    window = _wave(state, places[way.setting], way, load, drawn)
                    if wave and window is not None:
                        windows[way.what].append(window)
            for what, waves in windows.items():
                show({"temperature": temperature, "what": what} | _summary(waves), out)
        if options.profiled:
            _profile(state, places, prompts, found, options)


def _wave(state: dict[str, Any], place: Place, way: Way, load: Decoding, drawn: Iterator[list[int]]) -> Window | None:
    """What a wave came to; None where not all of it decoded together."""
    if way.setting.startswith("tile"):
        orders = Path(state["running"][way.setting]["forced"])
        force(orders, Forced(load.clients, STEPS, way.tier))
    try:
        return decode(place, load, drawn).windows[0]
    except RuntimeError as error:
        print(f"{way.what}: {error}")
        return None


def _summary(waves: list[Window]) -> dict[str, Any]:
    if len(waves) < 2:
        return {"waves": len(waves)}
    both = [wave.launch + wave.process for wave in waves]
    columns = {
        "launch_us": [wave.launch for wave in waves],
        "process_us": [wave.process for wave in waves],
        "both_us": both,
        "mean_us": [wave.thread for wave in waves],
        "step_us": [wave.seconds / wave.steps for wave in waves],
    }
    means = {name: round(1e6 * statistics.fmean(column), 1) for name, column in columns.items()}
    errors = [round(1e6 * statistics.stdev(column) / math.sqrt(len(column)), 1) for column in columns.values()]
    return {"waves": len(waves), **means, "errors_us": errors, "median_us": round(1e6 * statistics.median(both), 1)}


def _profile(
    state: dict[str, Any], places: dict[str, Place], prompts: Prompts, found: list[Way], options: argparse.Namespace
) -> None:
    """A wave of each way whose steps are profiled."""
    for temperature, (number, way) in itertools.product(options.temperatures, enumerate(found)):
        load = Decoding(options.clients, options.tokens, temperature, waves=1)
        out = options.out.resolve().with_name(f"{options.out.stem}-{temperature}-{number}-{way.setting}.prof")
        wanted = Wanted(options.clients, options.profiled, str(out))
        profile(Path(state["running"][way.setting]["profiled"]), wanted)
        _wave(state, places[way.setting], way, load, prompts.draw(KIND, "launches, profiled"))
        print(f"{way.what}: {out if out.exists() else 'too few steps to be profiled'}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="file that prompts.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96, help="of each request on average (default %(default)s)")
    parser.add_argument("--waves", type=int, default=8, help="of each way that count (default %(default)s)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--profiled", type=int, default=12, help="steps of each, or 0 (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
