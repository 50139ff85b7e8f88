"""Run SGLang's own tests on stock and with everything on, and compare: ``make test-peers SGLANG=DIR``.

DIR is a checkout of SGLang at the version that is installed. Its tests are copied to a working folder, where ids and
shapes that a tiny model lacks are replaced (`sglang.toml`); nothing of it comes into this repository. Each group of
files runs in one pytest process, in a session of its own that is ended whole: with everything on, and then, on stock,
what did not pass. What is in the results folder already is not run again, so a run that was cut off goes on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers_options import ADAPTER, EVERYTHING, OURS, SIDES, STOCK, TINY
from peers_report import PASSED, Side, load, report

from tessera.launching.processes import ProcessFamily
from tessera_testing import adapters
from tessera_testing.weights import with_other_weights

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLAN = HERE / "sglang.toml"
TESTS = "test/registered"
MODEL, OTHER = "tiny-Instruct", "tiny"
_POLL_SECONDS = 0.5
_END_SECONDS = 10.0


@dataclass(frozen=True)
class Group:
    """Files that run in one pytest process.

    Attributes:
        name: of the files of results.
        files: below `TESTS`, as glob patterns, in the order in which they run; `::` and a class for one of a file's.
        seconds: how long one side may take.
        test_seconds: how long one test may take.
        context: tokens of a request at most.
        unit: whether its tests start no server.
        share: whether a server outlives the class that started it.
        on: our options where everything is on, beside every row.
        bare: whether stock is the plugin without a feature: only with it does the CPU engine verify drafts.
        sized: whether a server that drafts has ``--tile-spec``.
        without: tests that this group leaves out, as another one runs them.
        env: further environment.
    """

    name: str
    files: list[str]
    seconds: int = 900
    test_seconds: int = 100
    context: int = 600
    unit: bool = False
    share: bool = True
    bare: bool = False
    on: list[str] = field(default_factory=lambda: list(OURS))
    sized: bool = True
    without: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def main() -> int:
    """Run what has no results yet, write the table; 1 if a test passes on stock and fails with everything on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder of SGLang's sources, at the installed version")
    parser.add_argument("--results", type=Path, default=ROOT / ".peers", help="folder of results")
    parser.add_argument("--out", type=Path, help="file that the table is written to")
    parser.add_argument("--only", nargs="*", help="names of groups, in their order")
    parser.add_argument("--afresh", action="store_true", help="run what has results, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or servers would live on
    plan = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    known = {group["name"]: Group(**group) for group in plan["group"]}
    groups = [known[name] for name in options.only or known]
    work = prepared(options.checkout.resolve(), options.results.resolve() / "work", plan.get("replace", {}))
    models(work / "models")
    left_out = [test for entry in plan.get("excluded", []) for test in entry.get("tests", [])]
    for group in groups:
        _run_once(group, work, options.results, left_out, afresh=options.afresh)
        _try_again(group, work, options.results)
    sides = {group.name: load(options.results, group.name) for group in groups}
    text, broken = report(sides, plan.get("excluded", []), version("sglang"))
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text if not options.out else f"{options.out}: {broken} tests pass on stock and fail with everything on")
    return 1 if broken else 0


def prepared(checkout: Path, work: Path, replace: dict[str, dict[str, str]]) -> Path:
    """Return a folder with the tests of a checkout, in which words are replaced; other folders of it are linked.

    Raises:
        SystemExit: it is no checkout of SGLang, or what is to be replaced is not there.
    """
    if not (checkout / TESTS).is_dir():
        raise SystemExit(f"{checkout} has no {TESTS}: give a checkout of SGLang v{version('sglang')}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for entry in checkout.iterdir():
        if entry.name == "test":
            shutil.copytree(entry, work / "test", symlinks=True)
        elif entry.name != ".git":
            (work / entry.name).symlink_to(entry)
    # Servers run in this folder, and transformers would take it for the package: each stop string ends the scheduler.
    shutil.rmtree(work / TESTS / "mlx", ignore_errors=True)
    for pattern, words in replace.items():
        _replace(work / TESTS, pattern, words)
    return work


def _replace(folder: Path, pattern: str, words: dict[str, str]) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in folder.glob(pattern)}
    for old, new in words.items():
        if not any(old in text for text in texts.values()):
            raise SystemExit(f"{pattern}: no file has {old!r}")
        texts = {path: text.replace(old, new) for path, text in texts.items()}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def models(folder: Path) -> None:
    """Make the model, another with other weights, whose name tests get by cutting off "-Instruct", and an adapter."""
    for name in (MODEL, OTHER, ADAPTER.name):
        (folder / name).mkdir(parents=True)
    for path in TINY.iterdir():
        (folder / MODEL / path.name).symlink_to(path)
    with_other_weights(folder / OTHER)
    adapters.make(folder / ADAPTER.name, seed=0)


def _run_once(group: Group, work: Path, results: Path, left_out: Sequence[str], *, afresh: bool) -> None:
    ours, stock = (results / f"{group.name}.{side}.jsonl" for side in (EVERYTHING, STOCK))
    folder = work / TESTS
    if afresh or not ours.exists():
        tests = [test for pattern in group.files for test in _found(folder, pattern)]
        _run(group, EVERYTHING, list(dict.fromkeys(tests)), work, ours, left_out)
        stock.unlink(missing_ok=True)
    rest = [test for test, outcome in Side.read(ours).outcomes.items() if outcome != PASSED]
    if rest and not stock.exists():
        _run(group, STOCK, rest, work, stock, left_out)


def _found(folder: Path, pattern: str) -> list[str]:
    """Files of a folder by a glob pattern; what stands behind `::` goes with each."""
    glob, *name = pattern.split("::")
    files = sorted(folder.glob(glob))
    if not files:
        raise SystemExit(f"no {glob} is in {folder}")
    return ["::".join([str(file.relative_to(folder)), *name]) for file in files]


def _try_again(group: Group, work: Path, results: Path) -> None:
    """A test that differs has a second try on both sides, alone: some of SGLang's tests depend on the clock."""
    path = results / f"{group.name}.again.jsonl"
    different = load(results, group.name).different()
    if path.exists() or not different:
        return
    for side in SIDES:
        _run(group, side, different, work, results / f"{group.name}.{side}.again.jsonl")
    path.write_text("", encoding="utf-8")


def _run(group: Group, side: str, tests: Sequence[str], work: Path, path: Path, left_out: Sequence[str] = ()) -> None:
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    part.touch()
    begin = time.monotonic()
    print(f"{group.name}, {side}: ", end="", flush=True)
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            _command(group, tests, left_out),
            cwd=work / TESTS,
            env=_environment(group, side, part, tests, work),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        family = ProcessFamily(process.pid)
        try:
            while process.poll() is None and time.monotonic() - begin < group.seconds:
                family.refresh()
                time.sleep(_POLL_SECONDS)
        finally:
            family.end(_END_SECONDS)
            status = process.wait()
    note = "cut off by its time limit" if time.monotonic() - begin >= group.seconds else f"status {status}"
    Side.close(part, note)
    part.rename(path)
    print(f"{note} after {time.monotonic() - begin:.0f} s", flush=True)


def _command(group: Group, tests: Sequence[str], left_out: Sequence[str]) -> list[str]:
    mode = "importlib" if group.unit else "prepend"  # servers import modules of tests by name
    plugins = ("-p", "peers_plugin", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:randomly")
    # A start of a server, in a class's set-up, has its own limit.
    limits = (f"--timeout={group.test_seconds}", "-o", "timeout_func_only=true", "--continue-on-collection-errors")
    form = ("-q", "-rA", "--tb=short", "-c", os.devnull, "--rootdir=.", f"--import-mode={mode}")
    deselected = [part for test in (*left_out, *group.without) for part in ("--deselect", test)]
    return [sys.executable, "-m", "pytest", *plugins, *limits, *form, *deselected, *tests]


def _environment(group: Group, side: str, records: Path, tests: Sequence[str], work: Path) -> dict[str, str]:
    folders = sorted({str((work / TESTS / test.split("::")[0]).parent) for test in tests})
    ours: dict[str, Any] = {
        "PEERS_SIDE": side,
        "PEERS_RECORDS": records.resolve(),
        "PEERS_CONTEXT": group.context,
        "PEERS_KIND": "unit" if group.unit else "server",
        "PEERS_ON": " ".join(group.on),
        "PEERS_SHARE": int(group.share),
        "PEERS_SIZED": int(group.sized),
        "PEERS_MODEL": work / "models" / MODEL,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "tests/site"), *folders]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HF_HUB_OFFLINE": 1,
        "TRANSFORMERS_OFFLINE": 1,
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": 0,
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": 0,
        "OMP_NUM_THREADS": 1,
        "NO_PROXY": "*",
    }
    if side == STOCK and not group.bare:
        ours |= {"TESSERA_DISABLE": 1}
    return {**os.environ, **{name: str(value) for name, value in ours.items()}, **group.env}


if __name__ == "__main__":
    sys.exit(main())
