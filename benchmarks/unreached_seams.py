r"""What happens where SGLang no longer comes to one seam: each that must be reached is lost alone.

For each, a server starts with what needs it, and SGLang sends its own first request. One JSON line says with which line
the server ended, or that it serves. Servers run on a GPU, or where there is none on the CPU engine, as forks of a
process that has imported SGLang.

  python benchmarks/unreached_seams.py --out unreached.jsonl [--only PART_OF_A_NAME ...]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from provenance import note, provenance, show
from refused_options import GPU, SITE, why
from tessera import versions
from tessera.launching.command import gpu_present
from tessera.launching.server import Server, ServerStartError
from tessera_patches import inventory, support
from tessera_patches.core.seam import Phase, Runs, Seam
from tessera_testing.architectures import make
from tessera_testing.drafts import TREE, chain, drafting
from tessera_testing.generate import generate
from tessera_testing.prepared.interpreter import Interpreter
from tessera_testing.prepared.server import ForkedServer
from tessera_testing.starts import HOST_CACHE, RANKS_ON_CPUS, TWO_RANKS
from tessera_testing.tiny import TINY, TINY_MOE

HIDDEN, INJECTION, SIZED = "--enable-return-hidden-states", "--enable-injection", "--tile-spec"
SERVES = "serves"
BUSY_SECONDS = 300
"""After which a server that neither serves nor ends is given up."""


class Group(NamedTuple):
    """A server.

    Attributes:
        name: what it does.
        options: its options.
        model: an architecture of `tessera_testing.architectures`, or one of the tiny models.
        env: its environment.
        needs: the feature that this SGLang may lack.
    """

    name: str
    options: tuple[str, ...]
    model: str | Path = TINY
    env: dict[str, str] = {}  # noqa: RUF012 - of a tuple
    needs: str = ""


GROUPS = (
    Group("rows and injection", (HIDDEN, INJECTION)),
    Group("chains of a draft model", (HIDDEN, INJECTION, SIZED, *drafting("STANDALONE", chain(3)))),
    Group("trees of a draft model", (HIDDEN, SIZED, *drafting("STANDALONE", TREE))),
    Group("sampled chains of EAGLE", (SIZED, *drafting("EAGLE", chain(3)))),
    Group("trees of EAGLE", (HIDDEN, SIZED, *drafting("EAGLE", TREE), "--tessera-ui", "--crash-dump-folder", "{home}")),
    Group("latents", (HIDDEN,), model="DeepSeek-V3"),
    Group("windows", (HIDDEN,), model="Mellum"),
    Group("experts on two ranks", (HIDDEN, *TWO_RANKS, "--ep-size", "2"), model=TINY_MOE, env=RANKS_ON_CPUS),
    Group("host cache", (HIDDEN, *HOST_CACHE), needs="cpu_host_cache"),
)


class Tried(NamedTuple):
    """A server whose seams are lost one by one."""

    group: Group
    folder: Path
    home: Path
    interpreter: Interpreter

    def start(self, *lost: Seam) -> Server:
        """The server, to be entered; SGLang's own first request is sent."""
        fault = {"TESSERA_TEST_FAULT": "unreached", "TESSERA_TEST_UNREACHED": " ".join(seam.name for seam in lost)}
        env = self.group.env | (fault if lost else {})
        options = [option.replace("{home}", str(self.home)) for option in self.group.options]
        log = self.home / "server.log"
        if gpu_present():
            server = Server(self.folder, *GPU, *options, env=env, log_path=log, start_seconds=BUSY_SECONDS)
        else:
            server = ForkedServer(
                self.interpreter, self.folder, *options, env=env, log_path=log, start_seconds=BUSY_SECONDS
            )
        server._command.remove("--skip-server-warmup")  # noqa: SLF001 - which it adds by itself
        return server

    def needed(self) -> list[Seam]:
        """The seams that it must reach; it is started to see which."""
        with self.start() as server:
            generate(server, [1, 2, 3, 4], 3)
            ours = httpx.get(f"{server.url}/server_info", timeout=60).json()["tessera"]
        found = (seam for phase in Phase for seam in inventory.seams(phase, ours["on"]))
        return [seam for seam in found if seam.name in ours["calls"]["counts"] or self.warms_up(seam)]

    def warms_up(self, seam: Seam) -> bool:
        """Whether SGLang's own first request must come to it, which ``/server_info`` does not say."""
        return seam.runs is Runs.WARM_UP and (not seam.runs_with or "--crash-dump-folder" in self.group.options)

    def end_of(self, seam: Seam) -> str:
        """With which line it ends without a seam."""
        try:
            with self.start(seam) as server:
                generate(server, [1, 2, 3, 4], 3)
                return SERVES if server.exit_code is None else server.log.splitlines()[-1]
        except ServerStartError as error:
            refusals = [line for line in error.log.splitlines() if line.startswith("tessera: refusing to start: ")]
            return (*refusals, why(error))[0]  # which cuts lines
        except (httpx.HTTPError, RuntimeError) as error:
            return f"serves, and fails: {type(error).__name__}: {str(error)[:240]}"


def trials(tried: Tried, done: set[str], parts: list[str] | None) -> Iterator[dict[str, Any]]:
    """One line for each seam that no earlier group had."""
    for seam in tried.needed():
        if seam.name in done or (parts and not any(part in seam.name for part in parts)):
            continue
        done.add(seam.name)
        yield {"seam": seam.name, "runs": seam.runs, "server": tried.group.name, "ended": tried.end_of(seam)}


def main() -> None:
    """All seams, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("unreached.jsonl"))
    parser.add_argument("--only", nargs="+", help="parts of names")
    parser.add_argument("--groups", nargs="+", help="parts of names")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{SITE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done: set[str] = set()
    absent = support.absent(versions.installed() or support.DEFAULT)
    chosen = [one for one in GROUPS if not options.groups or any(part in one.name for part in options.groups)]
    with options.out.open("a") as out, tempfile.TemporaryDirectory() as home, Interpreter() as interpreter:
        note(provenance(), out)
        for group in [one for one in chosen if one.needs not in absent]:
            folder = Path(home) / group.name
            folder.mkdir()
            model = group.model if isinstance(group.model, Path) else make(folder, group.model)[0]
            for line in trials(Tried(group, model, folder, interpreter), done, options.only):
                show(line, out)


if __name__ == "__main__":
    main()
