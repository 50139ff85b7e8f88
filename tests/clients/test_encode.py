"""``tessera encode`` with Ray Data, installed as a user installs it: ``pip install '.[encode]'``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tessera.launching.server import Server
from tessera_testing.pages import ROOT
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.tiny import TINY

pytestmark = pytest.mark.clients
COMMAND = ROOT / ".clients/venv/bin/tessera"
SECONDS = 240
TEXTS = [f"def f{i}(x):" for i in range(7)]


def test_every_document_once(server: Server, tmp_path: Path) -> None:
    """Files of two documents each, with the mean of their rows."""
    docs, output = tmp_path / "docs.jsonl", tmp_path / "out"
    docs.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    files = ["--input", str(docs), "--output", str(output), "--rows-per-file", "2"]
    ran = subprocess.run(
        [str(COMMAND), "encode", *files, "--servers", server.url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-2000:]
    table = pa.concat_tables([pq.read_table(path) for path in sorted(output.glob("*.parquet"))])
    assert table["id"].to_pylist() == list(range(len(TEXTS)))
    hf = HuggingFace(TINY)
    for text, vector in zip(TEXTS, table["embedding"].to_pylist(), strict=True):
        expected = hf.pooled(hf.tokenizer(text)["input_ids"], [], "mean", "prompt")
        assert relative_error(np.array(vector), expected) <= 1e-5
