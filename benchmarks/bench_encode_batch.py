"""What a client costs: encode_batch of 10,000 texts, its CPU time and its memory, and the time of its import.

Each measurement is a fresh process that has only the client: its CPU time over wall time, the growth of its peak memory
over the size of the result, and texts a second. The import is timed as ``python -X importtime`` does. Example:

  SGLANG_URL=http://127.0.0.1:30000 python benchmarks/bench_encode_batch.py --out benchmarks/results/encode-batch.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from provenance import provenance, show

ENCODE = """
import json, re, sys, time
from pathlib import Path
import numpy as np
from tessera.client import AsyncClient, Client
import asyncio
url, count, length, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
chooser = np.random.default_rng()
words = ["import", "return", "self", "value", "items", "class", "path", "name", "index", "for"]
texts = [" ".join(words[i] for i in chooser.integers(len(words), size=length)) for _ in range(count)]
def memory(name):  # not getrusage: its peak is that of the parent process if that was larger
    return 1024 * int(re.search(rf"{name}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
async def run():
    async with AsyncClient(url) as client:
        return await client.encode_batch(texts)
client = Client(url)
client.health_check()
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before, cpu, begin = memory("VmRSS"), time.process_time(), time.perf_counter()
found = (asyncio.run(run()) if kind == "async" else client.encode_batch(texts)).numpy()
wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
grown = memory("VmHWM") - before
assert found.shape[0] == count and np.isfinite(found).all()
print(json.dumps({
    "kind": kind, "texts": count, "words": length, "hidden_size": found.shape[1], "seconds": round(wall, 3),
    "texts_per_second": round(count / wall, 1), "cpu_seconds": round(cpu, 3), "cpu_of_wall": round(cpu / wall, 4),
    "result_bytes": found.nbytes, "grown_bytes": grown, "grown_of_result": round(grown / found.nbytes, 3)}))
"""


def main() -> None:
    """Measure both clients and the import."""
    options = _options()
    with options.out.open("w") as out:
        print(json.dumps(provenance()), file=out, flush=True)
        for kind in ("sync", "async"):
            show(json.loads(_python("-c", ENCODE, options.url, str(options.texts), str(options.words), kind)), out)
        show(_imports(options.rounds), out)


def _imports(rounds: int) -> dict[str, Any]:
    """Milliseconds of ``import tessera.client`` in fresh processes; the least is that of an idle machine."""
    times = []
    for _ in range(rounds):
        lines = _python("-X", "importtime", "-c", "import tessera.client", errors=True).splitlines()
        (last,) = [line for line in lines if line.endswith("| tessera.client")]
        times.append(int(last.split("|")[1]) / 1000)
    return {"import_ms": {"least": min(times), "median": round(statistics.median(times), 1), "most": max(times)}}


def _python(*arguments: str, errors: bool = False) -> str:
    run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    return run.stderr if errors else run.stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines go here")
    parser.add_argument("--url", default=os.environ.get("SGLANG_URL"), help="of a running server (default $SGLANG_URL)")
    parser.add_argument("--texts", type=int, default=10_000, help="default 10,000")
    parser.add_argument("--words", type=int, default=64, help="of each text (default 64)")
    parser.add_argument("--rounds", type=int, default=10, help="imports that are timed (default 10)")
    options = parser.parse_args()
    if not options.url:
        parser.error("give --url, or SGLANG_URL")
    return options


if __name__ == "__main__":
    main()
