"""Every feature at once, for as long as you like: no answer may be wrong, and no process may grow.

The server keeps rows, injects, fingerprints every response, speculates with drafts that dice size, and retracts
requests every few steps. It answers canaries (`tessera_testing.canary`), claims and batches of texts, each compared
with Hugging Face. Meanwhile every process of it is stopped and continued, thousands of requests come at once, and some
clients read one byte a second. At the end each process is killed, one after the other, and a new server takes the same
port. Example:

  make soak MINUTES=20
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provenance import provenance
from soaking.readers import SLOW_READERS, slow_readers
from soaking.tally import MAIN, Tally, memory, processes, report
from tessera.client import Client
from tessera.launching.server import Server
from tessera_testing.canary import canaries, fly, judge
from tessera_testing.claims import claim_of, generate_with_fingerprints, verdicts
from tessera_testing.drafts import chain, drafting, retracting
from tessera_testing.free_port import free_port
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.tiny import TINY

SITE = Path(__file__).parent.parent / "tests" / "site"
OPTIONS = (
    *("--enable-return-hidden-states", "--enable-injection", "--toploc-verification", "--enable-metrics"),
    *drafting("STANDALONE", chain(5)),
    "--tile-spec",
)
EXIT_SECONDS = 120.0
STOPPED_SECONDS = 2.0
VOCABULARY = 1000


class Soak:
    """Asks one server after the other.

    Args:
        port: of all of them.
        at_once: requests that run together.
        seed: of what is asked.
    """

    def __init__(self, port: int, at_once: int, seed: int) -> None:
        self.tally = Tally()
        self._port = port
        self._at_once = at_once
        self._seed = seed
        self._chooser = random.Random(seed)
        self._hf = HuggingFace(TINY)

    def server(self) -> Server:
        """One with every feature, not started yet."""
        path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
        env = {"TESSERA_TEST_FAULT": "dice", "PYTHONPATH": path, **retracting(7)}
        return Server(TINY, *OPTIONS, env=env, port=self._port, progress=_say)

    def flock(self, server: Server, count: int, at_once: int | None = None, longest: int = 40) -> None:
        """Canaries, some of which leave early."""
        self._seed += 1
        flock = canaries(count, VOCABULARY, self._seed, leaving=0.1, longest=longest, injecting=0.3)
        answers = fly(server.url, flock, at_once=at_once or self._at_once)
        for verdict in judge(flock, answers, self._hf):
            self.tally.note(verdict.problem, verdict.error)
        self.tally.retracted += sum(bool(one and one["meta_info"].get("num_retractions")) for one in answers)

    def claims(self, server: Server, count: int) -> None:
        """Fingerprints of honest responses pass, those of another response fail."""
        prompts = [self._chooser.choices(range(8, VOCABULARY), k=self._chooser.randint(1, 90)) for _ in range(count)]
        with ThreadPoolExecutor(4) as threads:
            honest = [
                claim_of(meta) for meta in threads.map(lambda ids: generate_with_fingerprints(server, ids), prompts)
            ]
        wrong = {**honest[0], "fingerprints": honest[1]["fingerprints"]}
        expected = ["pass"] * count + ["fail"]
        for found, right in zip(verdicts(server, *honest, wrong), expected, strict=True):
            self.tally.note("" if found == right else f"a claim that must {right}: {found}")

    def texts(self, server: Server, count: int) -> None:
        """A batch of texts, binary."""
        texts = [f"value_{self._chooser.random()} = {i}" for i in range(count)]
        with Client(server.url) as client:
            found = client.encode_batch(texts)
        for text, vector in zip(texts, found, strict=True):
            expected = self._hf.pooled(self._hf.tokenizer(text)["input_ids"], [], "mean", "prompt")
            self.tally.note("", relative_error(vector, expected))

    def round(self, server: Server) -> None:
        """Some of each."""
        self.flock(server, 150)
        self.claims(server, 8)
        self.texts(server, 40)
        self.tally.memory.append((self.tally.operations, memory(server)))

    def stopped(self, server: Server) -> None:
        """Each process is stopped for a while, in mid-flock."""
        for name, pid in processes(server).items():
            with ThreadPoolExecutor(1) as pool:
                flying = pool.submit(self.flock, server, 60)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_SECONDS)
                os.kill(pid, signal.SIGCONT)
                flying.result()
            self.event(f"SIGSTOP of {name} for {STOPPED_SECONDS:g} s", "all answers right")

    def burst(self, server: Server, count: int) -> None:
        """So many requests at once."""
        begin = time.perf_counter()
        self.flock(server, count, at_once=count, longest=9)
        self.event(f"{count:,} requests at once", f"all answered right, in {time.perf_counter() - begin:.0f} s")

    def slow(self, server: Server) -> None:
        """Neighbours of clients that read a byte a second."""
        with slow_readers(server):
            self.flock(server, 100)
        self.event(f"{SLOW_READERS} readers at 1 byte/s", "100 neighbours answered right")

    def killed(self, server: Server, name: str) -> Server:
        """SIGKILL of one process ends the server; returns the next one, on the same port."""
        begin = time.perf_counter()
        os.kill(processes(server)[name], signal.SIGKILL)
        while server.exit_code is None and time.perf_counter() - begin < EXIT_SECONDS:
            time.sleep(0.1)
        ended = f"ended after {time.perf_counter() - begin:.0f} s"
        if server.exit_code is None:
            self.tally.wrong.append(f"the server lives though {name} was killed")
        server.stop()
        left = len(list(Path(tempfile.gettempdir()).glob(f"tessera-{server.pid}-*")))
        if left:
            self.tally.wrong.append(f"{left} folders stayed after {name} was killed")
        again = self.server()
        again.start()
        try:
            again.wait_ready()
            self.flock(again, 60)
        except BaseException:
            again.stop()
            raise
        self.event(f"SIGKILL of {name}", f"{ended}; {left} folders left; restarted on the same port, answers right")
        return again

    def event(self, what: str, came: str) -> None:
        """Note it; what was wrong is counted elsewhere."""
        self.tally.events.append((what, f"{len(self.tally.wrong)} wrong answers so far" if self.tally.wrong else came))
        _say(f"{what}: {self.tally.events[-1][1]}")


def _run(soak: Soak, options: argparse.Namespace) -> None:
    server = soak.server()
    try:
        server.start()
        server.wait_ready()
        _load(soak, server, options)
        names = [*sorted(set(processes(server)) - {MAIN}), MAIN]
        for name in names if options.kill else ():
            server = soak.killed(server, name)
    finally:
        server.stop()


def _load(soak: Soak, server: Server, options: argparse.Namespace) -> None:
    """Rounds for as long as was asked for, and between them each of the other steps once."""
    steps: list[Callable[[Server], None]] = [soak.stopped, soak.slow, lambda it: soak.burst(it, options.burst)]
    end = time.perf_counter() + 60 * options.minutes
    share = 60 * options.minutes / (len(steps) + 1)
    while steps or time.perf_counter() < end:
        soak.round(server)
        _say(f"{soak.tally.operations:,} operations, {len(soak.tally.wrong)} wrong, worst {soak.tally.worst:.1e}")
        if steps and time.perf_counter() > end - len(steps) * share:
            steps.pop(0)(server)


def main() -> int:
    """Soak; 0 if no answer is wrong."""
    options = _options()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soak = Soak(free_port(), options.at_once, options.seed)
    origin = provenance()
    begin = time.perf_counter()
    _run(soak, options)
    page = report(soak.tally, time.perf_counter() - begin)
    print(page)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(f"<!-- {json.dumps(origin)} -->\n\n{page}\n")
    return 1 if soak.tally.wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="of load, before processes are killed (default: 20)"
    )
    parser.add_argument("--at-once", type=int, default=16, help="requests that run together (default: 16)")
    parser.add_argument("--burst", type=int, default=2000, help="requests at once, one time (default: 2,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="no process is killed at the end")
    parser.add_argument("--out", type=Path, help="the report is written here, too")
    return parser.parse_args()


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
