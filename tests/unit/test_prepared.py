"""Processes forked from a prepared one are as if ``exec`` had started them; here it has not imported the engine."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

from tessera_testing.prepared.imports import recorded
from tessera_testing.prepared.interpreter import Interpreter

PROGRAM = """
import sys
from tessera_testing.prepared import __main__ as prepared
prepared.import_engine = lambda: __import__("wave")
prepared.main(int(sys.argv[1]))
"""
SPAWNING = """
import multiprocessing, os
spawn = multiprocessing.get_context("spawn")
ours, theirs = spawn.Pipe()
os.environ["CHANGED"] = "now"
code = "import os, sys; send(('wave' in sys.modules, os.getppid(), os.getsid(0), os.environ['CHANGED'])); sys.exit(3)"
child = spawn.Process(target=exec, args=(code, {"send": theirs.send}))
child.start()
print(ours.recv() == (True, os.getpid(), os.getpid(), "now"))
child.join(60)
print(child.exitcode)
"""


@pytest.fixture(scope="module")
def light() -> Iterator[Interpreter]:
    """A prepared process that has imported next to nothing."""
    with Interpreter(("-c", PROGRAM)) as interpreter:
        yield interpreter


def run(light: Interpreter, *args: str, **env: str) -> tuple[int, list[str]]:
    """A program's exit status, and the lines that it writes."""
    with tempfile.TemporaryFile() as out:
        status = light.run(args, {**os.environ, **env}, out).wait()
        out.seek(0)
        return status, out.read().decode().splitlines()


@pytest.mark.parametrize(
    ("code", "status", "last"),
    [
        ("print('done')", 0, "done"),
        ("import sys; sys.exit(5)", 5, None),
        ("raise SystemExit('why')", 1, "why"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, None),
    ],
)
def test_how_a_program_ends(light: Interpreter, code: str, status: int, last: str | None) -> None:
    """Its exit status is told, and what it wrote is in its file."""
    found, lines = run(light, "-c", code)
    assert found == status
    assert (lines[-1] if lines else None) == last


def test_what_a_program_finds(light: Interpreter) -> None:
    """Arguments, environment, a session of its own whose parent is the process that asked, and what was imported."""
    found = "sys.argv, os.environ['CHANGED'], os.getsid(0) == os.getpid(), os.getppid(), 'wave' in sys.modules"
    assert run(light, "-c", f"import os, sys; print({found})", "a", CHANGED="x") == (
        0,
        [f"['-c', 'a'] x True {os.getpid()} True"],
    )
    status, lines = run(light, "-m", "calendar", "2026", "11")
    assert (status, lines[0].strip()) == (0, "November 2026")


def test_what_a_program_spawns(light: Interpreter) -> None:
    """Its children by multiprocessing are forked as well, are its own, and have its environment."""
    assert run(light, "-c", SPAWNING) == (0, ["True", "3"])


def test_nothing_outlives_its_parent() -> None:
    """A process that nobody stopped is killed."""
    with tempfile.TemporaryFile() as out, Interpreter(("-c", PROGRAM)) as light:
        sleeping = light.run(("-c", "import time; time.sleep(600)"), os.environ, out)
    assert sleeping.wait() == -signal.SIGKILL


def test_imports_that_fail() -> None:
    """The reason is told."""
    broken = Interpreter(("-c", "raise OSError('no disk')"))
    with broken, pytest.raises(RuntimeError, match="OSError: no disk"):
        broken.differing({})


def test_what_imports_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that they read, unless they had set them."""
    monkeypatch.setenv("READ", "a")
    monkeypatch.delenv("ABSENT", raising=False)
    monkeypatch.delenv("OURS", raising=False)

    def work() -> None:
        os.environ["OURS"] = "set"
        os.environ.get("ABSENT"), os.environ["READ"], os.environ["OURS"]

    found = recorded(work)
    monkeypatch.delenv("OURS")
    same = dict(os.environ)
    assert found.differing(same) == found.differing(same | {"OURS": "set", "NOT_READ": "b"}) == set()
    assert found.differing(same | {"READ": "b", "ABSENT": "", "OURS": "other"}) == {"READ", "ABSENT", "OURS"}
