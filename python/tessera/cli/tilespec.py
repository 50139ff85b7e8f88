"""``tessera tilespec``: measure or look at a cost profile, and at what policies make of a recorded trace."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.installing import install
from tessera.launching.command import gpu_present

if TYPE_CHECKING:
    from tessera.tilespec.cache import Profile

_START_SECONDS = 1800.0
"""A large model loads, and captures several sets of graphs."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("tilespec", help="cost profiles and traces of speculative decoding")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a cost profile; with --png, plot its staircase")
    show.add_argument("file", nargs="?", type=Path, help="a profile (default: the newest in the cache)")
    show.add_argument("--png", type=Path, metavar="FILE", help="write the plot here (needs matplotlib)")
    show.set_defaults(run=_show)
    measure = actions.add_parser(
        "profile",
        help="measure what steps cost with these options, keep it for later starts, and print it",
        description="Start a server with --tile-spec, wait until it has measured its graphs, stop it and print the "
        "profile. The profile is kept under everything that changes costs: give the options of the real server.",
        epilog="Example:\n  tessera tilespec profile MODEL -- --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path DRAFT \\\n      --speculative-num-steps 7 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    measure.add_argument("model", type=Path, help="folder of the model")
    measure.add_argument("sglang", nargs="*", metavar="-- ...", help="options of sglang.launch_server")
    measure.set_defaults(run=_profile)
    again = actions.add_parser("replay", help="what each policy would have chosen on a recorded trace")
    again.add_argument("trace", type=Path, help="a trace, as a server with --tile-spec-trace wrote it")
    again.add_argument("--requests", type=int, metavar="N", help="compare steps of N requests only (default: all)")
    again.set_defaults(run=_replay)


# What the policies need is imported where it is used: without numba it warns, and most commands have no policy.


def _show(options: argparse.Namespace) -> int:
    from tessera.tilespec import cache
    from tessera.tilespec.cache import ProfileUnusable

    found = [options.file] if options.file else cache.profiles()
    if not found:
        places = ", ".join(map(str, cache.folders()))
        return _fail(f"no profile in {places}: a server that is started with --tile-spec leaves one there")
    try:
        profile = cache.read(found[0])
    except ProfileUnusable as error:
        return _fail(str(error) if options.file else f"{error}. Delete it: the next start measures again")
    print(found[0])
    for line in lines(profile):
        print(line)
    if options.png:
        try:
            from tessera.tilespec.plot import plot
        except ImportError:
            return _fail(f"--png needs matplotlib; {install('plot')}")
        plot(profile.costs, options.png)
        print(f"plot: {options.png}")
    return 0


def _profile(options: argparse.Namespace) -> int:
    from tessera.launching.server import Server, ServerStartError
    from tessera.tilespec import cache

    if not gpu_present():
        return _fail("nothing to measure: costs are those of CUDA graphs, and this machine shows no NVIDIA GPU")
    if not options.model.is_dir():
        return _fail(f"{options.model} is no folder")
    try:
        with Server(options.model, *options.sglang, "--tile-spec", start_seconds=_START_SECONDS, progress=print) as it:
            log = it.log
    except ServerStartError as error:
        return _fail(str(error))
    said = re.findall(r"tessera: the cost profile is ([0-9a-f]{64}), after ([0-9.]+) s", log)
    found = [path for path in cache.profiles() if said and path.stem == said[-1][0]]
    if not found:
        return _fail("the server said nothing of a profile: start it without this command and read its log")
    print(f"known or measured in {said[-1][1]} s")
    return _show(argparse.Namespace(file=found[0], png=None))


def _replay(options: argparse.Namespace) -> int:
    from tessera.tilespec import replay
    from tessera.tilespec.trace import Trace

    try:
        result = replay.replay(Trace(options.trace), options.requests)
    except (OSError, TypeError, ValueError, IndexError) as error:
        return _fail(f"{options.trace} cannot be replayed: {error}")
    if not result.records:
        wanted = "" if options.requests is None else f" of {options.requests} requests"
        return _fail(f"{options.trace} has no step{wanted}")
    print(f"{result.records:,} steps")
    for line in replay.table(result):
        print(line)
    return 0


def lines(profile: Profile) -> Iterator[str]:
    """A profile as text: its facts, then milliseconds by size."""
    for name, value in sorted(profile.facts.items()):
        yield f"  {name}: {value}"
    costs = profile.costs
    nanoseconds = ", ".join(f"{costs.kv_seconds[steps] * 1e9:.3f} at {steps}" for steps in costs.steps)
    yield f"around the graphs {costs.host_seconds * 1e3:.3f} ms a step"
    yield f"ns a cached token, by draft steps: {nanoseconds}"
    if costs.tiers:
        yield "ragged verification"
        yield "  tokens  ms"
        for size, seconds in zip(costs.tiers.sizes, costs.tiers.seconds, strict=True):
            yield f"  {size:6d}  {seconds * 1e3:.3f}"
    yield "uniform verification, draft and draft-extend by batch size, ms"
    yield f"  {'bs':>5} " + " ".join(f"{f'verify {s + 1}':>9} {f'draft {s}':>8} {'extend':>7}" for s in costs.steps)
    for bs in costs.batch_sizes:
        cells = []
        for verify, s in zip(costs.verify_uniform(bs), costs.steps, strict=True):
            draft = float(costs.draft[s].at(bs)) if s else 0.0
            extend = float(costs.extend[s + 1].at(bs)) if s + 1 in costs.extend else 0.0
            cells.append(f"{verify * 1e3:9.3f} {draft * 1e3:8.3f} {extend * 1e3:7.3f}")
        yield f"  {bs:5d} " + " ".join(cells)


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1
