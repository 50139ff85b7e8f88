"""The worked examples, against the real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tessera.launching.server import Server

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(server: Server, script: str, *options: str) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / script), *options]
    environment = {**os.environ, "SGLANG_URL": server.url}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_best_first_search(server: Server) -> None:
    """One problem is solved, by proposals and values from one server."""
    printed = run(server, "best_first_search/search.py", "--problems", "1", "--examples", "200")
    assert "one server for both jobs: sglang 0.5" in printed
    (function,) = re.findall(r"^def .*?^# ", printed, re.MULTILINE | re.DOTALL)
    compile(function, "found", "exec")


def test_minimal_fingerprints(server: Server) -> None:
    """An honest response passes, a tampered one fails."""
    lines = run(server, "minimal_fingerprints.py").splitlines()
    assert lines[1] == "as it was: pass"
    assert lines[2].startswith("another response: fail fingerprint 1: ")
    assert lines[3].startswith("another prompt: fail fingerprint 0: ")


def test_lean_tactics(server: Server) -> None:
    """The state's embedding comes, whatever a model of Python says about Lean."""
    assert run(server, "lean_tactics.py").splitlines()[-1] == "embedding: 256 values"
