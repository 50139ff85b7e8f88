"""Trace some steps of servers that are up: what the GPU does in them, and when it does nothing.

    python -m tilespec.trace_steps --prompts /tmp/prompts.json --out folder --settings k7 tile --clients 1 16

One ``SETTING-CLIENTS.trace.json.gz`` of torch's profiler for each, with the GPU's events and the host's launches, to be
read with `gpu_trace.py` or https://ui.perfetto.dev.
"""

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tilespec.bench_tilespec import STATE
from tilespec.decode import Decoding, Place, decode
from tilespec.prompts import read_prompts

STEPS = 20
WAVES = 4
"""The profiler takes a second to begin, in which a single client may be through with a wave."""
_SECONDS = 60.0


def main() -> None:
    """Trace them one after the other."""
    options = _options()
    running = json.loads(STATE.read_text(encoding="utf-8"))["running"]
    prompts = read_prompts(options.prompts)
    for setting in options.settings:
        place = Place(running[setting]["url"], Path(running[setting]["progress"]))
        for clients in options.clients:
            load = Decoding(clients, options.tokens, 0.0, WAVES)
            drawn = prompts.draw(options.kind, f"trace {clients}")
            folder = options.out.resolve() / f"{setting}-{clients}"
            print(trace(place, load, drawn, folder, options.prefill_seconds, ("CPU", "GPU")), flush=True)


def trace(
    place: Place,
    load: Decoding,
    prompts: Iterator[list[int]],
    folder: Path,
    prefill_seconds: float,
    activities: tuple[str, ...],
) -> Path:
    """Trace `STEPS` steps in the midst of what is decoded.

    Args:
        place: the server.
        load: longer than what is traced.
        prompts: of its requests.
        folder: where the server writes, not there yet or empty.
        prefill_seconds: until a wave decodes.
        activities: "GPU", "CPU" or both; the host is slower where it is traced.

    Raises:
        RuntimeError: the wave failed.
        TimeoutError: the server wrote no trace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as thread:
        wave = thread.submit(decode, place, load, prompts)
        time.sleep(prefill_seconds)
        body = {"output_dir": str(folder), "num_steps": STEPS, "activities": activities}
        httpx.post(f"{place.url}/start_profile", json=body, timeout=_SECONDS).raise_for_status()
        wave.result()
    until = time.monotonic() + _SECONDS
    while not (written := list(folder.glob("*.trace.json.gz"))):
        if time.monotonic() > until:
            raise TimeoutError(f"{place.url} wrote no trace in {_SECONDS:.0f} s")
        time.sleep(0.2)
    time.sleep(1.0)  # it may still be writing
    return written[0]


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
