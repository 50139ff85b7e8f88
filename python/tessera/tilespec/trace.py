"""A record of every choice, one line of JSON each, bounded in size: what `tessera tilespec replay` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tessera.limits import MAX_TRACE_BYTES, MAX_TRACE_LINE
from tessera.tilespec.calibration import Traffic
from tessera.tilespec.costs import Array, CostTable
from tessera.tilespec.policy import Choice

SCHEMA = 8
_END = {"end": "the trace is full"}


@dataclass(frozen=True)
class Seen:
    """A histogram that the survivals were updated with: ``[is a sum, depth, bin, value]`` where it is not zero."""

    drafted: int
    cells: list[list[int]]
    traffic: int = Traffic.GREEDY
    young: float = 0.0
    """How new the requests were: see `tessera.tilespec.gain.Survivals.update`."""
    now: bool = True
    """Whether it was of the batch that ran when it arrived."""

    @classmethod
    def of(
        cls,
        histogram: npt.NDArray[np.int32],
        drafted: int,
        traffic: Traffic = Traffic.GREEDY,
        young: float = 0.0,
        *,
        now: bool = True,
    ) -> Seen:
        """From ``[2, S, BINS]`` as the kernel writes it."""
        places = np.argwhere(histogram)
        cells = np.column_stack([places, histogram[tuple(places.T)]]).tolist()
        return cls(drafted, cells, traffic, young, now)

    def histogram(self, shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
        """Back to the array; an IndexError or ValueError if the cells are not in it."""
        full = np.zeros(shape, np.int32)
        cells = np.array(self.cells, np.int64).reshape(-1, 4)
        if (cells[:, :3] < 0).any():
            raise ValueError("a cell of the histogram is negative")
        full[tuple(cells[:, :3].T)] = cells[:, 3]
        return full


@dataclass(frozen=True)
class Mean:
    """Mean conditional acceptance by depth, and the share of promised tokens that was accepted, where they changed."""

    values: list[float]
    kept: list[float]
    traffic: int = Traffic.GREEDY


@dataclass(slots=True)  # not frozen: one is made in every step, and that takes three times as long
class Record:
    """One step: what was learnt before it, what was chosen, and what came of it."""

    bs: int
    kv_tokens: int
    choice: Choice
    seen: list[Seen] = field(default_factory=list)
    """Since the last record."""
    means: list[Mean] = field(default_factory=list)
    """What changed after that."""
    accepted: int | None = None
    """Draft tokens accepted since the last record that says so: they are read with each fit of a calibration."""
    measured: float | None = None
    """Seconds, where measured."""
    joined: int = 0
    """Requests that decode since a prefill directly before."""
    disturbed: bool = False
    """Requests came or went directly before."""
    traffic: int = Traffic.GREEDY
    """A `tessera.tilespec.calibration.Traffic`."""


class TraceWriter:
    """Writes records until the trace has `MAX_TRACE_BYTES`; then one line that says so, then nothing.

    Args:
        file: replaced if it is there.
        costs: the profile in force.
        means: mean conditional acceptance by depth and the share kept at the beginning, for each kind of traffic.
    """

    def __init__(self, file: Path, costs: CostTable, means: Sequence[tuple[Array, Array]]) -> None:
        self._stream = file.open("w", encoding="utf-8")
        self._left = MAX_TRACE_BYTES
        self._line({"schema": SCHEMA, "costs": costs.to_json(), "means": np.array(means).tolist()})

    def write(self, record: Record) -> None:
        """Add one step."""
        self._line(asdict(record) | {"choice": record.choice._asdict()})

    def close(self) -> None:
        """End the file."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, content: dict[str, Any]) -> None:
        if self._left <= 0:
            return
        line = json.dumps(content, separators=(",", ":")) + "\n"
        self._left -= len(line)
        if self._left <= 0:
            line = json.dumps(_END) + "\n"
        self._stream.write(line)


class Trace:
    """A trace to read: its header at once, its records one after the other.

    Args:
        file: as a `TraceWriter` wrote it. A last line that was not finished is left out.

    Raises:
        ValueError: it is something else.
    """

    def __init__(self, file: Path) -> None:
        self._lines = _lines(file)
        header = next(self._lines, None)
        if not isinstance(header, dict) or header.get("schema") != SCHEMA:
            raise ValueError(f"{file} is not a trace of schema {SCHEMA}")
        self.costs = CostTable.from_json(header.get("costs"))
        self.means = np.array(header.get("means"), np.float64)
        if self.means.shape != (len(Traffic), 2, max(self.costs.steps)):
            raise ValueError(f"{file} has no mean acceptance for each depth")

    def records(self) -> Iterator[Record]:
        """Every record, in order; ValueError where a line is no record."""
        for content in self._lines:
            if content == _END:
                return
            try:
                choice = Choice(**content.pop("choice"))
                seen = [Seen(**one) for one in content.pop("seen")]
                means = [Mean(**one) for one in content.pop("means")]
                yield Record(choice=choice, seen=seen, means=means, **content)
            except (AttributeError, KeyError, TypeError) as error:
                raise ValueError(f"a line of the trace is damaged: {error!r}") from error


def _lines(file: Path) -> Iterator[Any]:
    with file.open(encoding="utf-8") as stream:
        while line := stream.readline(MAX_TRACE_LINE):
            if not line.endswith("\n"):
                if len(line) == MAX_TRACE_LINE:
                    raise ValueError(f"a line of the trace has more than {MAX_TRACE_LINE:,} characters")
                return
            yield json.loads(line)
