"""Reads of finished requests: of which rows, one read for all, one outcome for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from tessera.capabilities.embed.options import EmbedOptions, Pooling
from tessera.capabilities.fingerprints.options import FingerprintOptions
from tessera.capabilities.fingerprints.selection import row_mask
from tessera.capabilities.states.options import Format, StateOptions
from tessera.capabilities.token_ids.capability import TokenIdOptions
from tessera.delivery.outcome import Outcome, Part
from tessera.rows.kinds import BY_READ, Kind, Placed
from tessera.rows.reader import Read
from tessera.rows.reads import ALL_ROWS, Over, Pool, Rows, Top
from tessera.rows.service import Finished, RowService
from tessera.rows.store import RowStore
from tessera_testing.carried import requested
from tessera_testing.reads import fetched

H = 8


def finished(rid: str = "a", prompt: int = 10, output: int = 5, request: int = 3, **options: object) -> Finished:
    """A request that finished and asked for an embedding."""
    return Finished(rid, request, prompt, output, requested(embed=EmbedOptions(**options)))  # type: ignore[arg-type]


def with_states(rid: str = "a", prompt: int = 10, output: int = 5, **options: object) -> Finished:
    """A request that finished and asked for raw states."""
    return Finished(rid, 3, prompt, output, requested(states=StateOptions(**options)))  # type: ignore[arg-type]


def reads_of(request: Finished) -> list[Any]:
    """What is read for it."""
    return [read for _, read in Store().service()._wanted(request)]


def pooled(tokens: int) -> Part:
    """An embedding of so many rows."""
    return Part("embed", "pool", tokens)


def raw(rows: int) -> Part:
    """So many raw rows."""
    return Part("states", "rows", rows)


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
    assert reads_of(finished(output=output, over=over)) == [Pool(*expected)]


@pytest.mark.parametrize("output", [0, 1])
def test_empty_span(output: int) -> None:
    """Nothing generated was fed back."""
    for pooling in Pooling:
        (read,) = reads_of(finished(output=output, over=Over.OUTPUT, pooling=pooling))
        assert (read.start, read.end) == (10, 10)


def test_pooling_of_one_row() -> None:
    """First and last are means over one row."""
    assert reads_of(finished(pooling=Pooling.FIRST)) == [Pool(0, 1)]
    assert reads_of(finished(pooling=Pooling.LAST, over=Over.ALL)) == [Pool(13, 14)]
    assert reads_of(finished(pooling=Pooling.MAX)) == [Pool(0, 10, largest=True)]


@pytest.mark.parametrize(
    ("options", "output", "expected"),
    [
        ({}, 5, Rows(0, 14)),
        ({}, 0, Rows(0, 10)),
        ({"over": Over.OUTPUT}, 5, Rows(10, 14)),
        ({"over": Over.OUTPUT}, 1, Rows(10, 10)),
        ({"last": True}, 5, Rows(13, 14)),
        ({"last": True}, 0, Rows(9, 10)),
        ({"positions": (2, 13)}, 5, Rows(0, 14, (2, 13))),
    ],
)
def test_selection(options: Any, output: int, expected: Rows) -> None:
    """Raw rows of prompt and output, of some positions, of the last token."""
    assert reads_of(with_states(output=output, **options)) == [expected]


class Store:
    """Stands for reader and outbox: notes what was read and what was put."""

    def __init__(self, *, fails: bool = False) -> None:
        self.reads: list[dict[Kind, list[Placed]]] = []
        self.put: list[Outcome] = []
        self.steps = 0
        self.fails = fails

    def start(self, reads: Mapping[Kind, Sequence[Placed]]) -> Read:
        """As `tessera.rows.reader.RowReader.start`."""
        self.reads.append({kind: list(placed) for kind, placed in reads.items()})
        if self.fails:
            raise RuntimeError("planted")
        return Read(fetched(H))

    def end_step(self) -> None:
        """As `tessera.rows.reader.RowReader.end_step`."""
        self.steps += 1

    def take(self, outcomes: list[Outcome], read: Read | None) -> None:
        """As `tessera.delivery.outbox.Outbox.put`."""
        self.put += outcomes
        assert (read is not None) == any(outcome.has_rows for outcome in outcomes)

    def service(self, broken: str | None = None) -> RowService:
        """A service over this store."""
        store = RowStore(1, H, torch.float32, "cpu")
        store.broken = broken
        return RowService(self, self.take, store)


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
        service.note_finished(request)
    service.flush()
    service.flush()
    assert store.put == [
        Outcome("a", (pooled(10),)),
        Outcome("empty", (pooled(0),)),
        Outcome("s", (raw(2),)),
        Outcome("b", (pooled(1),)),
    ]
    (reads,) = store.reads
    assert [own.request for own in reads[BY_READ[Pool]] if own.read.start < own.read.end] == [1, 2]
    assert reads[BY_READ[Rows]] == [Placed(3, Rows(0, 14, (1, 2)))]
    assert BY_READ[Top] not in reads


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Finished("a", 1, 10, 5, requested(embed="{")), "rows_not_collected"),
        (with_states("a", positions=(0, 14)), "no_such_position"),
    ],
)
def test_one_request_fails_alone(request_: Finished, code: str) -> None:
    """What are no options, and a position that is not there."""
    store = Store()
    service = store.service()
    service.note_finished(request_)
    service.note_finished(finished("b"))
    service.flush()
    assert [(outcome.key, outcome.code) for outcome in store.put] == [("a", code), ("b", "")]


@pytest.mark.parametrize(("fails", "broken"), [(True, None), (False, "no memory")])
def test_store_that_fails(broken: str | None, *, fails: bool) -> None:
    """All of the step fail, but those that need no rows; the next step is tried again."""
    store = Store(fails=fails)
    service = store.service(broken)
    service.note_finished(finished("a"))
    service.note_finished(with_states("s"))
    service.note_finished(finished("empty", output=1, over=Over.OUTPUT))
    service.flush()
    codes = [(outcome.key, outcome.code) for outcome in store.put]
    assert codes == [("a", "row_store_failed"), ("s", "row_store_failed"), ("empty", "")]


def test_no_limit_for_binary_formats() -> None:
    """What is too many for a list is not for bytes."""
    store = Store()
    service = store.service()
    service.note_finished(with_states("a", prompt=2**21 + 1, format=Format.BASE64))
    service.flush()
    assert store.put == [Outcome("a", (raw(2**21 + 5),))]


def test_nothing_finished() -> None:
    """Most steps: nothing is read, nothing is put."""
    store = Store()
    store.service().flush()
    assert (store.reads, store.put, store.steps) == ([], [], 1)


def fingerprinted(
    prompt: int = 20, output: int = 70, done_reads: int = 0, *, running: bool = False, **options: Any
) -> Finished:
    """A request that asked for fingerprints."""
    done = {"fingerprints": done_reads}
    return Finished("f", 3, prompt, output, requested(fingerprints=FingerprintOptions(**options)), done, running)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (fingerprinted(), [(0, 20), (20, 52), (52, 84), (84, 89)]),
        (fingerprinted(done_reads=2), [(52, 84), (84, 89)]),
        (fingerprinted(output=1), [(0, 20)]),
        (fingerprinted(output=0), [(0, 20)]),
        (fingerprinted(output=65), [(0, 20), (20, 52), (52, 84)]),
        (fingerprinted(output=33, running=True, done_reads=1), [(20, 52)]),
        (fingerprinted(output=1, running=True), [(0, 20)]),
        (fingerprinted(output=70, running=True, done_reads=1), [(20, 52), (52, 84)]),
        (fingerprinted(89, 0, claim="x", tail=69), [(0, 20), (20, 52), (52, 84), (84, 89)]),
        (fingerprinted(89, 0, claim="x", tail=69, either_end=True), [(0, 20), (20, 52), (52, 84), (84, 89), (84, 88)]),
        (fingerprinted(85, 0, claim="x", tail=65, either_end=True), [(0, 20), (20, 52), (52, 84), (84, 85), (52, 84)]),
        (fingerprinted(21, 0, claim="x", tail=1, either_end=True), [(0, 20), (20, 21), (0, 20)]),
    ],
)
def test_chunks(request_: Finished, expected: list[tuple[int, int]]) -> None:
    """The prompt, then 32 generated rows each; of a running request only what is complete; of a claim by its tail."""
    found = reads_of(request_)
    assert [(chunk.start, chunk.end) for chunk in found] == expected
    assert {chunk.mask for chunk in found} <= {ALL_ROWS}
    assert [chunk.values for chunk in found] == [min(128, H * (end - start)) for start, end in expected]


def test_chunks_of_a_nonce() -> None:
    """Each chunk has a mask of its own; also the second last one of a claim made of text."""
    found = reads_of(fingerprinted(89, 0, claim="x", tail=69, either_end=True, nonce="n", topk=512))
    spans = [(0, 20), (1, 32), (2, 32), (3, 5), (3, 4)]
    assert [chunk.mask for chunk in found] == [row_mask("n", index, rows) for index, rows in spans]
    chosen = [sum(chunk.mask >> row & 1 for row in range(rows)) for chunk, (_, rows) in zip(found, spans, strict=True)]
    assert [chunk.values for chunk in found] == [H * count for count in chosen]


def test_fingerprints_in_one_read() -> None:
    """A request that goes on and one that ends; the outcome says how many values each fingerprint has."""
    store = Store()
    service = store.service()
    service.note_finished(fingerprinted(output=33, done_reads=1, running=True))
    service.note_finished(fingerprinted(output=40, done_reads=2))
    service.flush()
    first, last = store.put
    assert (first.parts, first.more, first.resets) == ((Part("fingerprints", "top", 128),), True, False)
    assert (last.parts, last.more, last.resets) == ((Part("fingerprints", "top", 56),), False, False)
    (reads,) = store.reads
    assert list(reads) == [BY_READ[Top]]
    assert [(own.read.start, own.read.end) for own in reads[BY_READ[Top]]] == [(20, 52), (52, 59)]


def test_while_it_runs_only_what_is_complete_is_read() -> None:
    """All else once, when it ends; the first outcome says that nothing came before."""
    uses = requested(embed=EmbedOptions(), states=StateOptions(), fingerprints=FingerprintOptions())
    store = Store()
    service = store.service()
    service.note_finished(Finished("a", 3, 20, 33, uses, {}, running=True))
    service.note_finished(Finished("a", 3, 20, 40, uses, {"fingerprints": 2}))
    service.flush()
    first, last = store.put
    assert [part.capability for part in first.parts] == ["fingerprints"] * 2
    assert sorted(part.capability for part in last.parts) == ["embed", "fingerprints", "states"]
    assert (first.resets, last.resets) == (True, False)


def test_outdated() -> None:
    """The prompt's ids, which only the scheduler knows, come all the same; nothing is read."""
    uses = requested(embed=EmbedOptions(), token_ids=TokenIdOptions(input=True, session=True))
    store = Store()
    service = store.service()
    service.note_outdated(Finished("a", 3, 10, 5, uses, prompt_ids=[7, 8]))
    service.flush()
    (outcome,) = store.put
    assert (outcome.code, outcome.parts) == ("weights_changed", (Part("token_ids", "ids", [7, 8]),))
    assert store.reads == []


def test_a_prompt_too_long_for_a_fingerprint() -> None:
    """Its places would not fit into 32 bits."""
    store = Store()
    service = store.service()
    service.note_finished(fingerprinted(prompt=2**29 + 1))
    service.flush()
    assert [outcome.code for outcome in store.put] == ["rows_not_collected"]
