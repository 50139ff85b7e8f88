"""The trace of all choices, a JSON line for each, bounded in size. `tessera tilespec replay` reads it."""

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

SCHEMA = 9
_END = {"end": "the trace is full"}


@dataclass(frozen=True)
class HistogramUpdate:
    """A survivals update: non-zero ``[is a sum, depth, bin, value]`` of the histogram, and the other arguments."""

    drafted: int
    cells: list[list[int]]
    traffic: int = Traffic.GREEDY
    freshness: float = 0.0
    current: bool = True

    @classmethod
    def of(
        cls,
        histogram: npt.NDArray[np.int32],
        drafted: int,
        traffic: Traffic = Traffic.GREEDY,
        freshness: float = 0.0,
        *,
        current: bool = True,
    ) -> HistogramUpdate:
        """From a histogram ``[2, S, BINS]``; other arguments as of `tessera.tilespec.gain.Survivals.update`."""
        places = np.argwhere(histogram)
        cells = np.column_stack([places, histogram[tuple(places.T)]]).tolist()
        return cls(drafted, cells, traffic, freshness, current)

    def histogram(self, shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
        full = np.zeros(shape, np.int32)
        cells = np.array(self.cells, np.int64).reshape(-1, 4)
        if (cells[:, :3] < 0).any():
            raise ValueError("a cell of the histogram is negative")
        full[tuple(cells[:, :3].T)] = cells[:, 3]
        return full


@dataclass(frozen=True)
class MeanUpdate:
    """New arguments of `tessera.tilespec.gain.Survivals.set_prior`."""

    values: list[float]
    accepted_ratio: list[float]
    traffic: int = Traffic.GREEDY


@dataclass(slots=True)  # not frozen: one is made in every step, and that takes three times as long
class Record:
    """One step: the updates before it, the choice, and the time that it took."""

    bs: int
    kv_tokens: int
    choice: Choice
    histograms: list[HistogramUpdate] = field(default_factory=list)
    """Updates since the last record."""
    means: list[MeanUpdate] = field(default_factory=list)
    """Updates after those."""
    accepted: int | None = None
    """Accepted draft tokens since the last record that has them; they are received with each fit of a calibration."""
    measured: float | None = None
    """Seconds that it took, if known."""
    new_requests: int = 0
    """Requests that decode for the first time, after a prefill."""
    disturbed: bool = False
    """Whether requests came or went directly before."""
    traffic: int = Traffic.GREEDY
    """A `tessera.tilespec.calibration.Traffic`."""


class TraceWriter:
    """Writes records until the trace has `MAX_TRACE_BYTES`, and then a line that says so.

    Args:
        file: overwritten if it exists.
        costs: the cost profile.
        means: mean conditional acceptance by depth and the accepted ratio at the beginning, for each kind of traffic.
    """

    def __init__(self, file: Path, costs: CostTable, means: Sequence[tuple[Array, Array]]) -> None:
        self._stream = file.open("w", encoding="utf-8")
        self._left = MAX_TRACE_BYTES
        self._line({"schema": SCHEMA, "costs": costs.to_json(), "means": np.array(means).tolist()})

    def write(self, record: Record) -> None:
        """Add one step to the file."""
        self._line(asdict(record) | {"choice": record.choice._asdict()})

    def close(self) -> None:
        """Write the rest, and close the file."""
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
    """Reads a trace: the header in the constructor, the records one after the other.

    Args:
        file: a file of a `TraceWriter`. An unfinished last line is left out.

    Raises:
        ValueError: the file is no trace, or of another schema.
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
        """All records in order.

        Raises:
            ValueError: a line is no record.
        """
        for content in self._lines:
            if content == _END:
                return
            try:
                choice = Choice(**content.pop("choice"))
                histograms = [HistogramUpdate(**one) for one in content.pop("histograms")]
                means = [MeanUpdate(**one) for one in content.pop("means")]
                yield Record(choice=choice, histograms=histograms, means=means, **content)
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
