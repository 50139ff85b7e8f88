"""Input files as parts: rows that are encoded together and become one output file."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

JSON_LINES, PARQUET = ".jsonl", ".parquet"
_SHOWN = 60
"""Characters of a bad value that a message shows."""
_LONG = 1 << 63
"""Ids from here on do not fit Arrow's int64."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the two columns that are read."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """Where the rows of one output file are.

    Attributes:
        number: of the output file.
        path: of the input.
        first: number of its first row in the input, from 1.
        rows: how many.
        most: rows of a part at most.
        place: JSON lines: the byte where it begins. Parquet: which batch of its row group it is.
        group: Parquet: the row group.
    """

    number: int
    path: str
    first: int
    rows: int
    most: int
    place: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Checked rows in the order of the input."""

    ids: list[int] | list[str]
    texts: list[str]


def parts(paths: list[Path], columns: Columns, most: int) -> Iterator[Part]:
    """Read every row once, check it, and yield the parts in order. One part at a time is in memory.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has another format, or a row is bad; the message names file, row, column, value and what may
            stand there.
    """
    numbers = itertools.count()
    kind: type | None = None
    for path in paths:
        first = 1
        for place, group, raw in _pieces(path, columns, most):
            ids = _checked(raw, columns, path, first).ids
            kind = kind or type(ids[0])
            if not isinstance(ids[0], kind):
                raise _bad(path, first, columns.id, ids[0], f"{_NAMES[kind]}, as in the rows before")
            yield Part(next(numbers), str(path), first, len(raw), most, place, group)
            first += len(raw)


def read(part: Part, columns: Columns) -> Rows:
    """The rows of one part, checked again.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has changed since it was checked.
    """
    path = Path(part.path)
    found = (raw for _, group, raw in _pieces(path, columns, part.most, part) if group == part.group)
    rows = _checked(next(found, []), columns, path, part.first)
    if len(rows.ids) != part.rows:
        raise ValueError(f"{path} has changed since this command began")
    return rows


def _pieces(
    path: Path, columns: Columns, most: int, only: Part | None = None
) -> Iterator[tuple[int, int, list[tuple[Any, Any]]]]:
    """Place, row group and pairs of id and text of each part, or only from one on."""
    if path.suffix == JSON_LINES:
        return _of_json_lines(path, columns, most, only)
    if path.suffix == PARQUET:
        return _of_parquet(path, columns, most, only)
    raise ValueError(f"{path} has another format: --input takes {JSON_LINES} and {PARQUET}")


def _of_json_lines(
    path: Path, columns: Columns, most: int, only: Part | None
) -> Iterator[tuple[int, int, list[tuple[Any, Any]]]]:
    with path.open("rb") as file:
        file.seek(only.place if only else 0)
        first = only.first if only else 1
        while lines := list(itertools.islice(file, most)):
            pairs = []
            for row, line in enumerate(lines, first):
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise _bad(path, row, "", line.decode(errors="replace"), "a JSON object in one line") from error
                if not isinstance(found, dict):
                    raise _bad(path, row, "", found, "a JSON object in one line")
                pairs.append((found.get(columns.id), found.get(columns.text)))
            yield file.tell() - sum(map(len, lines)), 0, pairs
            first += len(lines)


def _of_parquet(
    path: Path, columns: Columns, most: int, only: Part | None
) -> Iterator[tuple[int, int, list[tuple[Any, Any]]]]:
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no Parquet file: {error}") from error
    with file:
        missing = [name for name in (columns.id, columns.text) if name not in file.schema_arrow.names]
        if missing:
            raise ValueError(f"{path} has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
        for group in range(file.num_row_groups) if only is None else [only.group]:
            batches = file.iter_batches(most, row_groups=[group], columns=[columns.id, columns.text])
            for place, batch in enumerate(batches):
                if only is None or place >= only.place:
                    ids, texts = batch.column(columns.id).to_pylist(), batch.column(columns.text).to_pylist()
                    yield place, group, list(zip(ids, texts, strict=True))


_NAMES = {int: "an integer of 64 bits", str: "a text"}


def _checked(raw: list[tuple[Any, Any]], columns: Columns, path: Path, first: int) -> Rows:
    for row, (name, text) in enumerate(raw, first):
        if type(name) not in _NAMES or (isinstance(name, int) and not -_LONG <= name < _LONG):
            raise _bad(path, row, columns.id, name, "a text or an integer of 64 bits")
        if type(name) is not type(raw[0][0]):
            raise _bad(path, row, columns.id, name, f"{_NAMES[type(raw[0][0])]}, as in the rows before")
        if not isinstance(text, str) or not text:
            raise _bad(path, row, columns.text, text, "a text that is not empty")
    return Rows([name for name, _ in raw], [text for _, text in raw])


def _bad(path: Path, row: int, column: str, value: object, allowed: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return ValueError(f"{path}, row {row}: {column and column + ' is '}{shown}; allowed is {allowed}")
