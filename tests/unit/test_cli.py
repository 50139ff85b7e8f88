"""What holds for every command."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tessera.cli import check, main

RESPONSE = {
    "meta_info": {"input_ids": [1], "output_ids": [2], "toploc_verification_fingerprints": ["/9k="]},
}


class Locked(BaseHTTPRequestHandler):
    """Answers 401, and remembers the key."""

    key: str | None = None

    def do_POST(self) -> None:
        """Any route."""
        Locked.key = self.headers.get("Authorization")
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.end_headers()

    def do_GET(self) -> None:
        """Any route."""
        Locked.key = self.headers.get("Authorization")
        self.send_response(401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("command", ["check", "doctor", "verify"])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_the_key(
    command: str, by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an option or from the environment it reaches the server; a refusal says what to give."""
    response = tmp_path / "response.json"
    response.write_text(json.dumps(RESPONSE))
    with HTTPServer(("127.0.0.1", 0), Locked) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        given = {"check": [url], "doctor": ["--url", url], "verify": [str(response), "--server", url]}
        arguments = [command, *given[command]]
        if by == "environment":
            monkeypatch.setenv("SGLANG_API_KEY", "secret")
        else:
            arguments += ["--api-key", "secret"]
        assert main(arguments) != 0
        server.shutdown()
    assert Locked.key == "Bearer secret"
    assert "HTTP 401" in capsys.readouterr().out


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One word and the status of a shell, no traceback."""

    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "run", interrupted)
    assert main(["check"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_no_command_imports_the_policies() -> None:
    """They warn where numba is missing, which is everywhere that has only the client."""
    code = "import sys, tessera.cli; print([name for name in sys.modules if name.startswith('tessera.tilespec.pol')])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert printed.stdout == "[]\n"
