"""One part through one server into one file. Ray's workers run this."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tessera.bulk.documents import Columns, Part, Rows, read
from tessera.client import Client, ClientError, RequestTimeout
from tessera.client.options import EncodeOptions
from tessera.client.results import Floats
from tessera.client.retry import NEVER

PROBE = "def is_prime(n):"
"""Encoded with every part: its vector tells whether the server has still the same model."""
ALIKE = 0.99
"""Cosine of the probe's vectors below which two servers have different models; other GPUs and batches stay above."""
UNFINISHED = ".tmp"
"""Suffix of a file that is being written."""
_PAUSE = 1.0
"""Seconds after no server could answer."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is the same for all parts.

    Attributes:
        output: the folder.
        columns: of the input.
        servers: URLs.
        api_key: of the servers, None if they ask for none.
        options: of ``encode_batch``.
        patience: seconds during which all servers may fail before the run does.
        probe: the vector of `PROBE`, [H] float32.
    """

    output: Path
    columns: Columns
    servers: tuple[str, ...]
    api_key: str | None
    options: EncodeOptions
    patience: float
    probe: Floats

    def file(self, part: Part) -> Path:
        """Where the vectors of a part go; it is there when they all are."""
        return self.output / f"part-{part.number:06d}.parquet"


def run(row: dict[str, Any], job: Job) -> dict[str, Any]:
    """Encode one part; returns how many rows it has, and what went wrong: an error would come with Ray's traceback."""
    part = Part(**row)
    try:
        rows = read(part, job.columns)
        write(job, part, rows, encode(job, part, rows))
    except (ClientError, OSError, ValueError) as error:
        return {"rows": 0, "problem": str(error)}
    return {"rows": part.rows, "problem": ""}


def encode(job: Job, part: Part, rows: Rows) -> Floats:
    """The vectors [rows, H] float32. Parts begin at different servers; each goes to the next one when one fails.

    Raises:
        ClientError: the request was refused, or no server answered for `Job.patience` seconds.
    """
    end = time.monotonic() + job.patience
    attempt = 0
    while True:
        url = job.servers[(part.number + attempt) % len(job.servers)]
        try:
            with Client(url, api_key=job.api_key, retry=NEVER) as client:
                matrix = client.encode_batch([*rows.texts, PROBE], **job.options).numpy()
        except ClientError as error:
            if not (error.retried or isinstance(error, RequestTimeout)) or time.monotonic() > end:
                raise ValueError(f"{part.path}: {_by_id(str(error), job.columns, rows)}") from error
            attempt += 1
            if attempt % len(job.servers) == 0:
                time.sleep(_PAUSE)
            continue
        if not alike(matrix[-1], job.probe):
            raise ValueError(f"{url} has another model than at the start of this run")
        return matrix[:-1]


def alike(one: Floats, other: Floats) -> bool:
    """Whether two vectors of `PROBE` are of one model."""
    return one.shape == other.shape and float(one @ other) >= ALIKE * float(np.linalg.norm(one) * np.linalg.norm(other))


def write(job: Job, part: Part, rows: Rows, matrix: Floats) -> None:
    """Write the file under another name, and rename it when it is on the disk: it is whole or not there."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])
    table = pa.table({job.columns.id: pa.array(rows.ids), "embedding": vectors})
    unfinished = job.output / f"{part.number}.{uuid4().hex}{UNFINISHED}"
    with unfinished.open("wb") as file:
        pq.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(job.file(part))


def _by_id(message: str, columns: Columns, rows: Rows) -> str:
    """A client's message about ``texts[i]`` with the row's id."""
    return re.sub(
        r"texts\[(\d+)\]", lambda found: f"{columns.text} of {columns.id} {rows.ids[int(found[1])]!r}", message, count=1
    )
