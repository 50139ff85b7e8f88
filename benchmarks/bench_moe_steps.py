"""How well TileSpec knows the time of a step on a mixture of experts, before and after the correction while serving.

Starts one server with --tile-spec and a trace, sends each load, and goes through the trace: for every measured step the
profile's time and the corrected one, as it was known then, against the time that the step took. Writes one JSON line
for each load. Example, with a small random draft:

  python benchmarks/bench_moe_steps.py --model /models/30b-a3b --draft /models/draft --out steps.jsonl -- \
      --attention-backend fa3 --speculative-draft-attention-backend triton

On the CPU engine the profile is a made-up one (`tessera.tilespec.nominal`): the script runs there, its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import Any

from load import load_of, run
from provenance import provenance, show
from tessera.launching.server import Server
from tessera.tilespec.replay import Agreement, replay
from tessera.tilespec.trace import Trace


def main() -> None:
    """One server for each load, so that each begins with the profile alone."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers live in sessions of their own: stop them
    options.out.parent.mkdir(parents=True, exist_ok=True)
    steps = str(options.steps)
    with options.out.open("w") as out:
        print(json.dumps(provenance() | {"server_args": options.server_args}), file=out, flush=True)
        for number, load in enumerate(options.loads):
            trace = options.out.with_name(f"{options.out.stem}-{number}.trace.jsonl")
            args = (
                *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(options.draft)),
                *("--speculative-num-steps", steps, "--speculative-eagle-topk", "1"),
                *("--speculative-num-draft-tokens", str(options.steps + 1), "--tile-spec"),
                *("--tile-spec-trace", str(trace)),
            )
            log = options.out.with_name(f"{options.out.stem}-{number}.log")
            with Server(options.model, *options.server_args, *args, log_path=log, progress=print) as server:
                result = run(server.url, load, {}, seed=1)
            record = result.record(load) | agreement(replay(Trace(trace)).agreement)
            show(record, out)


def agreement(met: Agreement) -> dict[str, Any]:
    """Seconds in sum, and by how much of its time a step is off on average: by the profile, and corrected."""
    if not met.measured_seconds:
        return {"measured_seconds": 0.0, "note": "no step was measured"}
    return {
        "measured_seconds": round(met.measured_seconds, 4),
        "profiled_seconds": round(met.profiled_seconds, 4),
        "corrected_seconds": round(met.expected_seconds, 4),
        "profile_is_off_by": round(met.profiled_off / met.measured_seconds, 4),
        "corrected_is_off_by": round(met.expected_off / met.measured_seconds, 4),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the target")
    parser.add_argument("--draft", type=Path, required=True, help="a draft model with the same vocabulary")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here, traces and logs beside it")
    parser.add_argument("--steps", type=int, default=5, help="the most tokens to draft (default %(default)s)")
    parser.add_argument(
        "--loads",
        type=load_of,
        nargs="+",
        default=[load_of(text) for text in ("128/256/1/20", "128/256/16/20", "128/256/64/20")],
        help="PROMPT/OUTPUT/CLIENTS[/SECONDS] (default 1, 16 and 64 clients, 20 s each)",
    )
    parser.add_argument("server_args", nargs="*", help="after --: further arguments of the server")
    return parser.parse_args()


if __name__ == "__main__":
    main()
