"""The worked examples, against the real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tessera.testing.server import Server

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_best_first_search(server: Server) -> None:
    """One problem is solved, by proposals and values from one server."""
    command = [sys.executable, str(EXAMPLES / "best_first_search/search.py"), "--problems", "1", "--examples", "200"]
    environment = {**os.environ, "SGLANG_URL": server.url}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "one server for both jobs: sglang 0.5" in run.stdout
    (function,) = re.findall(r"^def .*?^# ", run.stdout, re.MULTILINE | re.DOTALL)
    compile(function, "found", "exec")
