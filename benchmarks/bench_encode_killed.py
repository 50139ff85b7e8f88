"""Documents that `tessera encode` encodes twice or never when a worker, a server and the command itself are killed.

Two CPU servers of the tiny model. At 15 % of the files a worker of Ray is killed, at 30 % a server, which is started
again at once, at 60 % the command with all that it started, which is then run again. At the end every id is counted,
and the vectors of a sample are compared with those of single requests. `make test-clients` has installed it. Example:

  python benchmarks/bench_encode_killed.py --out benchmarks/results/encode-killed.jsonl
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from provenance import provenance, show
from tessera.client import Client
from tessera.launching.processes import ProcessFamily
from tessera.launching.server import Server
from tessera_testing.free_port import free_port
from tessera_testing.reference import relative_error
from tessera_testing.tiny import TINY

WORDS = ("def", "return", "import", "class", "self", "index", "value", "for", "in", "if", "else", "list", "map")
OPTIONS = ("--enable-return-hidden-states", "--max-total-tokens", "32768")
SAMPLE = 500
MOST_SECONDS = 3600.0
WORKER_SECONDS = 60.0


def server(port: int) -> Server:
    """One that is started, and not waited for."""
    made = Server(TINY, *OPTIONS, port=port)
    made.start()
    return made


def documents(count: int, path: Path) -> list[str]:
    """Write that many, each with another text; returns the texts, whose places are their ids."""
    dice = random.Random(1)
    texts = [f"{' '.join(dice.choices(WORDS, k=2))} {i}" for i in range(count)]
    pq.write_table(pa.table({"id": list(range(count)), "text": texts}), path)
    return texts


def wait(process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    """Until it is reached."""
    end = time.monotonic() + MOST_SECONDS
    while not reached():
        assert process.poll() is None, f"ended with {process.returncode} too early"
        assert time.monotonic() < end, "took too long"
        time.sleep(0.1)


def kill_worker(process: subprocess.Popen[bytes]) -> str:
    """End a worker of Ray that encodes now; returns its title.

    Raises:
        TimeoutError: there was none for a minute.
    """
    end = time.monotonic() + WORKER_SECONDS
    while time.monotonic() < end:
        for child in psutil.Process(process.pid).children(recursive=True):
            title = " ".join(child.cmdline())
            if title.startswith("ray::Map"):  # others are Ray's own, or idle
                child.kill()
                return title
        time.sleep(0.1)
    raise TimeoutError(f"no worker of Ray encoded in {WORKER_SECONDS:.0f} s")


def main() -> int:
    """Run it, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rows-per-file", type=int, default=1024)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", default=".clients/venv/bin/python", help="has tessera encode (default %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, options.out.open("w") as out:
        command = [options.python, "-c", "import ray; print(ray.__version__)"]
        ray = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        show({"kind": "provenance", "ray": ray, "pyarrow": version("pyarrow"), **provenance()}, out)
        texts = documents(options.documents, Path(folder, "docs.parquet"))
        servers = [server(free_port()), server(free_port())]
        try:
            for one in servers:
                one.wait_ready()
            show(measured(options, Path(folder), servers, texts), out)
        finally:
            for one in servers:
                one.stop()
    return 0


def measured(options: argparse.Namespace, folder: Path, servers: list[Server], texts: list[str]) -> dict[str, object]:
    """Encode with everything killed once; returns the figures."""
    output = folder / "vectors"
    urls = ",".join(one.url for one in servers)
    files = ["--input", str(folder / "docs.parquet"), "--output", str(output)]
    rows = ["--rows-per-file", str(options.rows_per_file)]
    command = [options.python, "-m", "tessera.cli", "encode", *files, "--servers", urls, *rows]

    def done(share: float) -> Callable[[], bool]:
        return lambda: len(list(output.glob("part-*.parquet"))) * options.rows_per_file >= share * len(texts)

    begin = time.monotonic()
    first = subprocess.Popen(command, start_new_session=True)
    family = ProcessFamily(first.pid)
    wait(first, done(0.05))
    early, early_files = time.monotonic(), len(list(output.glob("part-*.parquet")))
    wait(first, done(0.15))
    rate = options.rows_per_file * (len(list(output.glob("part-*.parquet"))) - early_files) / (time.monotonic() - early)
    worker = kill_worker(first)
    wait(first, done(0.3))
    psutil.Process(servers[1].pid).kill()
    servers[1].stop()
    servers[1] = server(servers[1].port)
    wait(first, done(0.6))
    first.kill()
    family.end(5)
    first.wait()
    files_before = len(list(output.glob("part-*.parquet")))
    second = subprocess.run(command, check=False)
    seconds = time.monotonic() - begin
    whole = pa.concat_tables([pq.read_table(path) for path in sorted(output.glob("part-*.parquet"))])
    counts = Counter(whole["id"].to_pylist())
    return {
        "kind": "encode-killed",
        "documents": len(texts),
        "killed": [" ".join(worker.split()), f"server {servers[1].url}", "the command"],
        "files_before_second_run": files_before,
        "exit_of_second_run": second.returncode,
        "twice": sum(count > 1 for count in counts.values()),
        "never": sum(i not in counts for i in range(len(texts))),
        "unknown": sum(i not in range(len(texts)) for i in counts),
        "worst_error_of_sample": worst(servers[0], whole, texts),
        "documents_per_second_undisturbed": round(rate, 1),
        "seconds_in_all": round(seconds, 1),
    }


def worst(one: Server, whole: pa.Table, texts: list[str]) -> float:
    """The largest relative error of a sample's vectors against requests for one text each."""
    places = random.Random(2).sample(range(whole.num_rows), min(SAMPLE, whole.num_rows))
    with Client(one.url) as client:
        errors = [
            relative_error(
                np.array(whole["embedding"][at].as_py()),
                client.encode(texts[whole["id"][at].as_py()]).numpy().astype(np.float64),
            )
            for at in places
        ]
    return float(np.max(errors))  # NaN if one is


if __name__ == "__main__":
    sys.exit(main())
