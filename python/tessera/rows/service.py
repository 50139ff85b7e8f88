"""Read the rows of requests that finish in a step, or got far enough: one read for all, one outcome for each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tessera.delivery.outcome import Ids, Outcome
from tessera.embed.options import EmbedOptions, Pooling
from tessera.errors import NO_SUCH_POSITION, ROW_STORE_FAILED, ROWS_NOT_COLLECTED, WEIGHTS_CHANGED
from tessera.fingerprint.chunks import chosen_rows, complete, values_proven
from tessera.fingerprint.options import FingerprintOptions
from tessera.limits import MAX_PLACES
from tessera.rows.reader import Read, Selection
from tessera.rows.span import bounds
from tessera.states.options import StateOptions
from tessera_kernels.ops.rows.pool_rows import Reduce, Span
from tessera_kernels.ops.rows.top_rows import Chunk

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that finished, or got far enough for a fingerprint, and whose KV slots are still its own.

    Attributes:
        key: what the main process gave the request: a token of ours and SGLang's request id.
        request: the request's row in ``req_to_token``.
        prompt_tokens: N.
        output_tokens: M, through the stop; 0 where nothing was generated.
        embed: its `EmbedOptions`, as they rode in ``custom_params``; None where it did not ask.
        states: its `StateOptions`, likewise.
        fingerprints: its `FingerprintOptions`, likewise.
        proven: how many of its fingerprints were read before.
        running: whether it goes on; then only fingerprints are read, those that are complete.
        input_ids: of its prompt, where they are to be sent.
    """

    key: str
    request: int
    prompt_tokens: int
    output_tokens: int
    embed: str | None = None
    states: str | None = None
    fingerprints: str | None = None
    proven: int = 0
    running: bool = False
    input_ids: Ids | None = None


class Reader(Protocol):
    """What we need of `tessera.rows.reader.RowReader`."""

    def start(self, spans: list[Span], selections: list[Selection], chunks: list[Chunk]) -> Read:
        """Begin to read."""

    def end_step(self) -> None:
        """Mark the end of a step."""


class RowService:
    """Collects finished requests and reads their rows together. Runs on the scheduler's thread, and never waits.

    Args:
        reader: reads the row store.
        put: takes the outcomes of a step and the read that fetches what belongs to them.
        broken: says why the row store cannot be trusted, or None.
        hidden_size: H, the width of a row.
        topk: how many values a fingerprint proves.
    """

    def __init__(
        self,
        reader: Reader,
        put: Callable[[list[Outcome], Read | None], None],
        broken: Callable[[], str | None],
        hidden_size: int,
        topk: int,
    ) -> None:
        self._reader = reader
        self._put = put
        self._broken = broken
        self._hidden_size = hidden_size
        self._topk = topk
        self._outcomes: list[Outcome] = []
        self._spans: list[Span] = []
        self._selections: list[Selection] = []
        self._chunks: list[Chunk] = []

    def finished(self, request: Finished) -> None:
        """Note a request. Its rows are read at the next `flush`, together with all others noted."""
        try:
            span, selection = span_of(request), selection_of(request)
            chunks = chunks_of(request, self._hidden_size, self._topk)
        except Exception as error:  # noqa: BLE001 - the boundary to SGLang's scheduler; it is logged there
            self.failed(request.key, error)
            return
        beyond = None if selection is None else _beyond(selection)
        if beyond is not None:
            self._outcomes.append(Outcome(request.key, code=NO_SUCH_POSITION, message=beyond))
            return
        tokens = None if request.embed is None else 0 if span is None else span.end - span.start
        shape = None if selection is None else (_count(selection), self._hidden_size)
        self._spans += [] if span is None else [span]
        self._selections += [] if selection is None else [selection]
        self._chunks += chunks
        values = None if request.fingerprints is None else tuple(chunk.values for chunk in chunks)
        running, proven, ids = request.running, request.proven, request.input_ids
        self._outcomes.append(Outcome(request.key, tokens, shape, values, running, proven, input_ids=ids))

    def failed(self, key: str, error: Exception) -> None:
        """Note that a request gets no rows, for this reason."""
        logger.error("tessera: no rows for request %s", key, exc_info=error)
        self._outcomes.append(Outcome(key, code=ROWS_NOT_COLLECTED, message=f"no rows for this request: {error}"))

    def outdated(self, key: str, input_ids: Ids | None = None) -> None:
        """Note that a request gets no rows, for they are not all of the same weights. Its answer stands."""
        message = "the weights changed during this request"
        self._outcomes.append(Outcome(key, code=WEIGHTS_CHANGED, message=message, input_ids=input_ids))

    def flush(self) -> None:
        """Begin to read the rows of all requests noted; to be called before anything can reuse their slots."""
        if self._outcomes:
            outcomes, wanted = self._outcomes, (self._spans, self._selections, self._chunks)
            self._outcomes, self._spans, self._selections, self._chunks = [], [], [], []
            self._put(*self._read(outcomes, *wanted))
        self.settle()

    def settle(self) -> None:
        """Have later reads see what the current stream was given so far."""
        self._reader.end_step()

    def _read(
        self, outcomes: list[Outcome], spans: list[Span], selections: list[Selection], chunks: list[Chunk]
    ) -> tuple[list[Outcome], Read | None]:
        broken = self._broken()
        if broken is not None:
            return _failed(outcomes, f"the row store is broken, restart the server: {broken}"), None
        try:
            some = spans or selections or chunks
            return outcomes, self._reader.start(spans, selections, chunks) if some else None
        except Exception as error:  # the same boundary: the requests of this step fail, the server lives
            logger.exception("tessera: reading rows failed")
            return _failed(outcomes, f"reading rows failed: {error}"), None


def span_of(request: Finished) -> Span | None:
    """The span to pool, or None where it is empty or not asked for. ``first`` and ``last`` are means over one row."""
    if request.embed is None:
        return None
    options = EmbedOptions.from_wire(request.embed)
    start, end = bounds(options.over, request.prompt_tokens, request.output_tokens)
    if start >= end:
        return None
    if options.pooling is Pooling.FIRST:
        end = start + 1
    elif options.pooling is Pooling.LAST:
        start = end - 1
    reduce = Reduce.MAX if options.pooling is Pooling.MAX else Reduce.MEAN
    return Span(request.request, start, end, reduce)


def selection_of(request: Finished) -> Selection | None:
    """The raw rows to fetch, or None where they are not asked for."""
    if request.states is None:
        return None
    options = StateOptions.from_wire(request.states)
    start, end = bounds(options.over, request.prompt_tokens, request.output_tokens)
    if options.last:
        start = end - 1
    return Selection(request.request, start, end, options.positions)


def chunks_of(request: Finished, hidden_size: int, topk: int) -> list[Chunk]:
    """Where its fingerprints look, but for those that were read before; none where none are asked for."""
    if request.fingerprints is None:
        return []
    options = FingerprintOptions.from_wire(request.fingerprints)
    rows = request.prompt_tokens + max(request.output_tokens - 1, 0)
    layouts = options.layouts(request.prompt_tokens, rows)
    upto = complete(request.output_tokens) if request.running else len(layouts)
    found = []
    for index, start, end in layouts[request.proven : upto]:
        if (end - start) * hidden_size > MAX_PLACES:
            raise ValueError(f"a fingerprint of {end - start} rows is not possible")
        mask = chosen_rows(options.nonce, index, end - start)
        found.append(Chunk(request.request, start, end, mask, values_proven(mask, end - start, hidden_size, topk)))
    return found


def _beyond(selection: Selection) -> str | None:
    """What is wrong with the positions, if anything."""
    last = max(selection.positions or (-1,))
    return f"position {last} is not among the {selection.end} rows of this request" if last >= selection.end else None


def _count(selection: Selection) -> int:
    return selection.end - selection.start if selection.positions is None else len(selection.positions)


def _failed(outcomes: list[Outcome], message: str) -> list[Outcome]:
    return [
        replace(outcome, code=ROW_STORE_FAILED, message=message)
        if outcome.has_vector or outcome.has_rows or outcome.tops
        else outcome
        for outcome in outcomes
    ]
