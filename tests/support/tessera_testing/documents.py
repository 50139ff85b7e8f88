"""Documents for ``tessera encode``, and what it must have made of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tessera_testing.reference import HuggingFace, relative_error

FLOAT32_ERROR = 1e-5
TEXTS = [f"def f{i}(x):" for i in range(7)]


def encoding(folder: Path, servers: str) -> list[str]:
    """Arguments of ``tessera`` that encode `TEXTS` into ``folder/out``, in files of two documents each."""
    docs = folder / "docs.jsonl"
    docs.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    files = ["--input", str(docs), "--output", str(folder / "out"), "--rows-per-file", "2"]
    return ["encode", *files, "--servers", servers]


def check(output: Path, hf: HuggingFace) -> None:
    """Every document once, with the mean of its rows."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(output.glob("*.parquet"))])
    assert table["id"].to_pylist() == list(range(len(TEXTS)))
    for text, vector in zip(TEXTS, table["embedding"].to_pylist(), strict=True):
        expected = hf.pooled(hf.tokenizer(text)["input_ids"], [], "mean", "prompt")
        assert relative_error(np.array(vector), expected) <= FLOAT32_ERROR
