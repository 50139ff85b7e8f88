"""``tessera tilespec``: look at a cost profile, and at what policies make of a recorded trace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tessera.tilespec import cache, replay
from tessera.tilespec.cache import Profile, ProfileUnusable
from tessera.tilespec.trace import Trace


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("tilespec", help="cost profiles and traces of speculative decoding")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a cost profile; with --png, plot its staircase")
    show.add_argument("file", nargs="?", type=Path, help="a profile (default: the newest in the cache)")
    show.add_argument("--png", type=Path, metavar="FILE", help="write the plot here (needs matplotlib)")
    show.set_defaults(run=_show)
    again = actions.add_parser("replay", help="what each policy would have chosen on a recorded trace")
    again.add_argument("trace", type=Path, help="a trace, as a server with --tile-spec-trace wrote it")
    again.set_defaults(run=_replay)


def _show(options: argparse.Namespace) -> int:
    found = [options.file] if options.file else cache.profiles()
    if not found:
        places = ", ".join(map(str, cache.folders()))
        return _fail(f"no profile in {places}: a server that is started with --tile-spec leaves one there")
    try:
        profile = cache.read(found[0])
    except ProfileUnusable as error:
        return _fail(f"{error}. Delete it: the next start profiles anew")
    print(found[0])
    for line in lines(profile):
        print(line)
    if options.png:
        try:
            from tessera.tilespec.plot import plot
        except ImportError:
            return _fail("--png needs matplotlib; run: pip install 'sglang-tessera[plot]'")
        plot(profile.costs, options.png)
        print(f"plot: {options.png}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    try:
        result = replay.replay(Trace(options.trace))
    except (OSError, ValueError, IndexError) as error:
        return _fail(f"{options.trace} cannot be replayed: {error}")
    print(f"{result.records:,} steps")
    for line in replay.table(result):
        print(line)
    return 0


def lines(profile: Profile) -> Iterator[str]:
    """A profile as text: its facts, then milliseconds by size."""
    for name, value in sorted(profile.facts.items()):
        yield f"  {name}: {value}"
    costs = profile.costs
    yield f"host {costs.host_seconds * 1e3:.3f} ms a step, KV {costs.kv_seconds * 1e9:.3f} ns a cached token"
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
