"""``tessera encode`` with Ray Data, installed as a user installs it: ``pip install '.[encode]'``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tessera.launching.server import Server
from tessera_testing.documents import check, encoding
from tessera_testing.pages import ROOT
from tessera_testing.reference import HuggingFace
from tessera_testing.tiny import TINY

pytestmark = pytest.mark.clients
COMMAND = ROOT / ".clients/venv/bin/tessera"
SECONDS = 240


def test_every_document_once(server: Server, tmp_path: Path) -> None:
    """Files of two documents each, with the mean of their rows."""
    command = [str(COMMAND), *encoding(tmp_path, server.url)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-2000:]
    check(tmp_path / "out", HuggingFace(TINY))
