"""``tessera encode`` against a real server. A loop replaces Ray, which divides the work; ``tests/clients`` has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tessera.bulk import run as bulk
from tessera.bulk.documents import Columns, Part, Rows
from tessera.bulk.job import Job, encode, run
from tessera.cli import main
from tessera.launching.server import Server
from tessera_testing.documents import TEXTS, check, encoding
from tessera_testing.free_port import free_port
from tessera_testing.reference import HuggingFace


@pytest.fixture
def command(server: Server, tmp_path: Path) -> list[str]:
    """Files of two documents each."""
    return [*encoding(tmp_path, server.url), "--patience", "0"]


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the parts that were encoded; Ctrl-C before the third of all."""
    numbers: list[int] = []

    def encoded(job: Job, left: Sequence[Part], at_once: int, ray_address: str) -> Iterator[int]:
        for part in left:
            if len(numbers) == 2 and part.number == 2:
                numbers.append(-1)
                raise KeyboardInterrupt
            numbers.append(part.number)
            result = run(asdict(part), job)
            if result["problem"]:
                raise ValueError(result["problem"])
            yield result["rows"]

    monkeypatch.setattr(bulk, "_encoded", encoded)
    monkeypatch.setattr(bulk, "check_ray", lambda: None)
    return numbers


def test_it_goes_on(command: list[str], looped: list[int], tmp_path: Path, hf: HuggingFace) -> None:
    """Interrupted, it begins where it ended; finished, it does nothing; other options are refused."""
    assert main(command) == 130
    assert main(command) == main(command) == 0
    assert looped == [0, 1, -1, 2, 3]
    check(tmp_path / "out", hf)
    assert main([*command, "--normalize"]) == 1


def test_what_is_refused(
    command: list[str], looped: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options by the server before the run, a document by its id, a server that does not answer."""
    (tmp_path / "docs.jsonl").write_text(json.dumps({"id": "long", "text": "a b " * 4000}))
    dead = f"http://127.0.0.1:{free_port()}"
    for more, message in (
        (["--dimensions", "9999"], "dimensions: got 9999; allowed"),
        ([], "text of id 'long'"),
        (["--servers", f"{command[8]},{dead}"], f"nothing answers at {dead}"),
    ):
        assert main([*command, *more]) == 1
        assert message in capsys.readouterr().err


def test_the_next_server(server: Server, tmp_path: Path) -> None:
    """Takes over from one that does not answer; another model than at the start is an error."""
    dead = f"http://127.0.0.1:{free_port()}"
    probe = bulk.probe([server.url], None, {})
    job = Job(tmp_path, Columns("id", "text"), (dead, server.url), None, {}, 60, probe)
    part = Part(0, "docs.jsonl", 1, len(TEXTS), 1024, 0)
    rows = Rows(list(range(len(TEXTS))), TEXTS)
    assert encode(job, part, rows).shape == (len(TEXTS), len(probe))
    with pytest.raises(ValueError, match="another model"):
        encode(Job(tmp_path, job.columns, job.servers, None, {}, 60, -probe), part, rows)
