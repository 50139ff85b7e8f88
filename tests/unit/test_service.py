"""Pooling of finished requests: spans, one read for all, one outcome for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera.delivery.outcome import Outcome
from tessera.embed.options import EmbedOptions, Pooling
from tessera.fingerprint.chunks import ALL_ROWS, chosen_rows
from tessera.fingerprint.options import FingerprintOptions
from tessera.rows.reader import Fetched, Read, Selection
from tessera.rows.service import Finished, RowService, chunks_of, selection_of, span_of
from tessera.rows.span import Over
from tessera.states.options import Format, StateOptions
from tessera_kernels.ops.rows.pool_rows import Reduce, Span
from tessera_kernels.ops.rows.top_rows import Chunk


def finished(rid: str = "a", prompt: int = 10, output: int = 5, request: int = 3, **options: object) -> Finished:
    """A request that finished and asked for an embedding."""
    return Finished(rid, request, prompt, output, embed=EmbedOptions(**options).to_wire())  # type: ignore[arg-type]


def with_states(rid: str = "a", prompt: int = 10, output: int = 5, **options: object) -> Finished:
    """A request that finished and asked for raw states."""
    return Finished(rid, 3, prompt, output, states=StateOptions(**options).to_wire())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("over", "output", "expected"),
    [
        (Over.PROMPT, 5, (0, 10)),
        (Over.OUTPUT, 5, (10, 14)),
        (Over.ALL, 5, (0, 14)),
        (Over.ALL, 1, (0, 10)),
        (Over.ALL, 0, (0, 10)),
        (Over.OUTPUT, 2, (10, 11)),
    ],
)
def test_span(over: Over, output: int, expected: tuple[int, int]) -> None:
    """N+M-1 rows: the last generated token has none."""
    assert span_of(finished(output=output, over=over)) == Span(3, *expected, Reduce.MEAN)


@pytest.mark.parametrize("output", [0, 1])
def test_empty_span(output: int) -> None:
    """Nothing generated was fed back."""
    assert span_of(finished(output=output, over=Over.OUTPUT)) is None


def test_pooling_of_one_row() -> None:
    """First and last are means over one row."""
    assert span_of(finished(pooling=Pooling.FIRST)) == Span(3, 0, 1, Reduce.MEAN)
    assert span_of(finished(pooling=Pooling.LAST, over=Over.ALL)) == Span(3, 13, 14, Reduce.MEAN)
    assert span_of(finished(pooling=Pooling.MAX)) == Span(3, 0, 10, Reduce.MAX)


@pytest.mark.parametrize(
    ("options", "output", "expected"),
    [
        ({}, 5, Selection(3, 0, 14)),
        ({}, 0, Selection(3, 0, 10)),
        ({"over": Over.OUTPUT}, 5, Selection(3, 10, 14)),
        ({"over": Over.OUTPUT}, 1, Selection(3, 10, 10)),
        ({"last": True}, 5, Selection(3, 13, 14)),
        ({"last": True}, 0, Selection(3, 9, 10)),
        ({"positions": (2, 13)}, 5, Selection(3, 0, 14, (2, 13))),
    ],
)
def test_selection(options: Any, output: int, expected: Selection) -> None:
    """Raw rows of prompt and output, of some positions, of the last token."""
    assert selection_of(with_states(output=output, **options)) == expected


class Store:
    """Stands for reader and outbox: notes what was read and what was put."""

    def __init__(self, *, fails: bool = False) -> None:
        self.reads: list[tuple[list[Span], list[Selection], list[Chunk]]] = []
        self.put: list[Outcome] = []
        self.steps = 0
        self.fails = fails

    def start(self, spans: list[Span], selections: list[Selection], chunks: list[Chunk]) -> Read:
        """As `tessera.rows.reader.RowReader.start`."""
        self.reads.append((spans, selections, chunks))
        if self.fails:
            raise RuntimeError("planted")
        return Read(Fetched(torch.empty(0), [], torch.empty(0)))

    def end_step(self) -> None:
        """As `tessera.rows.reader.RowReader.end_step`."""
        self.steps += 1

    def take(self, outcomes: list[Outcome], read: Read | None) -> None:
        """As `tessera.delivery.outbox.Outbox.put`."""
        self.put += outcomes
        assert (read is not None) == any(outcome.has_vector or outcome.has_rows or outcome.tops for outcome in outcomes)

    def service(self, broken: str | None = None) -> RowService:
        """A service over this store."""
        return RowService(self, self.take, lambda: broken, hidden_size=8, topk=128)


def test_one_read_for_all_that_finish() -> None:
    """Four requests, one read; an empty span needs none; the next flush has nothing to do."""
    store = Store()
    service = store.service()
    for request in (
        finished("a", request=1),
        finished("empty", output=0, over=Over.OUTPUT),
        with_states("s", positions=(1, 2)),
        finished("b", request=2, pooling=Pooling.LAST),
    ):
        service.finished(request)
    service.flush()
    service.flush()
    assert store.put == [Outcome("a", 10), Outcome("empty", 0), Outcome("s", None, (2, 8)), Outcome("b", 1)]
    ((spans, selections, chunks),) = store.reads
    assert [span.request for span in spans] == [1, 2]
    assert selections == [Selection(3, 0, 14, (1, 2))]
    assert chunks == []


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Finished("a", 1, 10, 5, embed="{"), "rows_not_collected"),
        (with_states("a", positions=(0, 14)), "no_such_position"),
    ],
)
def test_one_request_fails_alone(request_: Finished, code: str) -> None:
    """What no schema has seen, and a position that is not there."""
    store = Store()
    service = store.service()
    service.finished(request_)
    service.finished(finished("b"))
    service.flush()
    assert [(outcome.key, outcome.code) for outcome in store.put] == [("a", code), ("b", "")]


@pytest.mark.parametrize(("fails", "broken"), [(True, None), (False, "no memory")])
def test_store_that_fails(broken: str | None, *, fails: bool) -> None:
    """All of the step fail, but those that need no rows; the next step is tried again."""
    store = Store(fails=fails)
    service = store.service(broken)
    service.finished(finished("a"))
    service.finished(with_states("s"))
    service.finished(finished("empty", output=1, over=Over.OUTPUT))
    service.flush()
    codes = [(outcome.key, outcome.code) for outcome in store.put]
    assert codes == [("a", "row_store_failed"), ("s", "row_store_failed"), ("empty", "")]


def test_no_limit_for_binary_formats() -> None:
    """What is too many for a list is not for bytes."""
    store = Store()
    service = store.service()
    service.finished(with_states("a", prompt=2**21 + 1, format=Format.BASE64))
    service.flush()
    assert store.put == [Outcome("a", None, (2**21 + 5, 8))]


def test_nothing_finished() -> None:
    """Most steps: nothing is read, nothing is put."""
    store = Store()
    store.service().flush()
    assert (store.reads, store.put, store.steps) == ([], [], 1)


def proving(prompt: int = 20, output: int = 70, proven: int = 0, *, running: bool = False, **options: Any) -> Finished:
    """A request that asked for fingerprints."""
    wire = FingerprintOptions(**options).to_wire()
    return Finished("f", 3, prompt, output, fingerprints=wire, proven=proven, running=running)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (proving(), [(0, 20), (20, 52), (52, 84), (84, 89)]),
        (proving(proven=2), [(52, 84), (84, 89)]),
        (proving(output=1), [(0, 20)]),
        (proving(output=0), [(0, 20)]),
        (proving(output=65), [(0, 20), (20, 52), (52, 84)]),
        (proving(output=33, running=True, proven=1), [(20, 52)]),
        (proving(output=1, running=True), [(0, 20)]),
        (proving(output=70, running=True, proven=1), [(20, 52), (52, 84)]),
        (proving(89, 0, tail=69), [(0, 20), (20, 52), (52, 84), (84, 89)]),
        (proving(89, 0, tail=69, either_end=True), [(0, 20), (20, 52), (52, 84), (84, 89), (84, 88)]),
        (proving(85, 0, tail=65, either_end=True), [(0, 20), (20, 52), (52, 84), (84, 85), (52, 84)]),
        (proving(21, 0, tail=1, either_end=True), [(0, 20), (20, 21), (0, 20)]),
        (finished(), []),
    ],
)
def test_chunks(request_: Finished, expected: list[tuple[int, int]]) -> None:
    """The prompt, then 32 generated rows each; of a running request only what is complete; of a claim by its tail."""
    found = chunks_of(request_, hidden_size=8, topk=128)
    assert [(chunk.start, chunk.end) for chunk in found] == expected
    assert {chunk.mask for chunk in found} <= {ALL_ROWS}
    assert [chunk.values for chunk in found] == [min(128, 8 * (end - start)) for start, end in expected]


def test_chunks_of_a_nonce() -> None:
    """Each chunk has a mask of its own; also the second last one of a claim made of text."""
    found = chunks_of(proving(89, 0, tail=69, either_end=True, nonce="n"), hidden_size=8, topk=512)
    spans = [(0, 20), (1, 32), (2, 32), (3, 5), (3, 4)]
    assert [chunk.mask for chunk in found] == [chosen_rows("n", index, rows) for index, rows in spans]
    chosen = [sum(chunk.mask >> row & 1 for row in range(rows)) for chunk, (_, rows) in zip(found, spans, strict=True)]
    assert [chunk.values for chunk in found] == [8 * count for count in chosen]


def test_fingerprints_in_one_read() -> None:
    """A request that goes on and one that ends; the outcome says how many values each fingerprint has."""
    store = Store()
    service = store.service()
    service.finished(proving(output=33, proven=1, running=True))
    service.finished(proving(output=40, proven=2))
    service.flush()
    first, last = store.put
    assert (first.values, first.more) == ((128,), True)
    assert (last.values, last.more) == ((56,), False)
    ((_, _, chunks),) = store.reads
    assert [(chunk.start, chunk.end) for chunk in chunks] == [(20, 52), (52, 59)]


def test_a_prompt_too_long_for_a_fingerprint() -> None:
    """Its places would not fit into 32 bits."""
    store = Store()
    service = store.service()
    service.finished(proving(prompt=2**29 + 1))
    service.flush()
    assert [outcome.code for outcome in store.put] == ["rows_not_collected"]
