"""Input of ``tessera encode``: parts, and what is refused before anything is sent; the output folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tessera.bulk.documents import Columns, parts, read
from tessera.bulk.folder import claim_folder

COLUMNS = Columns("id", "text")
ABOUT = {"options": {}, "probe": [1.0, 0.0]}


def written(path: Path, rows: list[Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_parts_are_the_rows_in_order(format_: str, tmp_path: Path) -> None:
    """Of both formats, with row groups that parts do not fit."""
    rows = [{"text": f"text {i}", "id": f"ï{i}"} for i in range(11)]
    path = tmp_path / f"docs.{format_}"
    if format_ == "jsonl":
        written(path, rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
    found = list(parts([path, path], COLUMNS, 3))
    assert [part.number for part in found] == list(range(len(found)))
    back = [pair for part in found for pair in zip(read(part, COLUMNS).ids, read(part, COLUMNS).texts, strict=True)]
    assert back == 2 * [(row["id"], row["text"]) for row in rows]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "b", "text": None}, "row 2: text is None; allowed is a text that is not empty"),
        ({"id": "b", "text": ""}, "row 2: text is ''; allowed"),
        ({"id": "b", "text": ["x"]}, "row 2: text is ['x']; allowed"),
        ({"id": "b"}, "row 2: text is None; allowed"),
        ({"text": "x"}, "row 2: id is None; allowed is a text or an integer of 64 bits"),
        ({"id": True, "text": "x"}, "row 2: id is True; allowed"),
        ({"id": 1 << 63, "text": "x"}, "row 2: id is 9223372036854775808; allowed"),
        ({"id": 3, "text": "x"}, "row 2: id is 3; allowed is a text, as in the rows before"),
        ([1], "row 2: [1]; allowed is a JSON object in one line"),
        ("{", r"row 2: '{\n'; allowed is a JSON object in one line"),
    ],
)
def test_bad_rows(row: Any, message: str, tmp_path: Path) -> None:
    """File, row, column, value, and what may stand there."""
    path = written(tmp_path / "docs.jsonl", [{"id": "a", "text": "x"}, row])
    for most in (1, 2):
        with pytest.raises(ValueError, match="allowed") as refused:
            list(parts([path], COLUMNS, most))
        assert message in str(refused.value)


def test_bad_files(tmp_path: Path) -> None:
    """Another format, no Parquet, no such column; a file that changed after it was checked."""
    csv, broken, good = tmp_path / "a.csv", written(tmp_path / "a.parquet", ["x"]), tmp_path / "b.parquet"
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), good)
    for path, message in ((csv, "another format"), (broken, "no Parquet file"), (good, "no column 'text'; it has id,")):
        with pytest.raises(ValueError, match=message):
            list(parts([path], COLUMNS, 8))
    lines = written(tmp_path / "a.jsonl", [{"id": 1, "text": "x"}] * 2)
    (part,) = parts([lines], COLUMNS, 8)
    written(lines, [{"id": 1, "text": "x"}])
    with pytest.raises(ValueError, match="has changed"):
        read(part, COLUMNS)


def test_the_folder_belongs_to_one_run(tmp_path: Path) -> None:
    """To one process at a time, with the same options and model; what is unfinished goes away."""
    refused = pytest.raises(ValueError, match="another tessera encode")
    with claim_folder(tmp_path, ABOUT), refused, claim_folder(tmp_path, ABOUT):
        pass
    (tmp_path / "0.x.tmp").touch()
    with claim_folder(tmp_path, {**ABOUT, "probe": [1.0, 0.01]}):
        assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    for other, message in (({"options": {"a": 1}}, "begun with options {}, not"), ({"probe": [0.0, 1.0]}, "model")):
        with pytest.raises(ValueError, match=message), claim_folder(tmp_path, {**ABOUT, **other}):
            pass
    (tmp_path / "run.json").unlink()
    np.save(tmp_path / "x.parquet", np.zeros(1))
    (tmp_path / "x.parquet.npy").rename(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="files of something else"), claim_folder(tmp_path, ABOUT):
        pass
