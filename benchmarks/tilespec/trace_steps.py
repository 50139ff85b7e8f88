"""Trace some steps of servers that are up: what the GPU does in them, and when it does nothing.

    python -m tilespec.trace_steps --prompts /tmp/prompts.json --out folder --settings k7 tile --clients 1 16

One ``SETTING-CLIENTS/*.trace.json.gz`` of torch's profiler for each, with the GPU's events and the host's launches, to
be read with `gpu_trace.py` or https://ui.perfetto.dev.
"""

import argparse
import json
from pathlib import Path

from tilespec.bench_tilespec import STATE, places_of
from tilespec.decode import Decoding
from tilespec.prompts import read_prompts
from tilespec.tracing import trace

WAVES = 4
"""The profiler takes a second to begin, in which a single client may be through with a wave."""


def main() -> None:
    """Trace them one after the other."""
    options = _options()
    state = json.loads(STATE.read_text(encoding="utf-8"))
    prompts = read_prompts(options.prompts)
    for setting, place in places_of(state, options.settings).items():
        for clients in options.clients:
            load = Decoding(clients, options.tokens, 0.0, WAVES)
            drawn = prompts.draw(options.kind, f"trace {clients}")
            folder = options.out.resolve() / f"{setting}-{clients}"
            print(trace(place, load, drawn, folder, options.prefill_seconds, ("CPU", "GPU")), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="file that prompts.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--settings", nargs="+", required=True, help="of those that are up")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--kind", default="mixed")
    parser.add_argument("--tokens", type=int, default=1000, help="of each request on average (default %(default)s)")
    parser.add_argument("--prefill-seconds", type=float, default=0.2, help="until a wave decodes (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
