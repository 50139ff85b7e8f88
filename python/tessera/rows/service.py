"""Read the rows of the requests that finish in a step: one read for all of them, one outcome for each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tessera.delivery.outcome import Outcome
from tessera.embed.options import EmbedOptions, Pooling
from tessera.errors import NO_SUCH_POSITION, ROW_STORE_FAILED, ROWS_NOT_COLLECTED, TOO_MANY_VALUES
from tessera.limits import MAX_LISTED_VALUES
from tessera.rows.reader import Read, Selection
from tessera.rows.span import bounds
from tessera.states.options import Format, StateOptions
from tessera_kernels.pool_rows import Reduce, Span

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that finished and whose KV slots are still its own.

    Attributes:
        key: what the main process gave the request: a token of ours and SGLang's request id.
        request: the request's row in ``req_to_token``.
        prompt_tokens: N.
        output_tokens: M, through the stop; 0 where nothing was generated.
        embed: its `EmbedOptions`, as they rode in ``custom_params``; None where it did not ask.
        states: its `StateOptions`, likewise.
    """

    key: str
    request: int
    prompt_tokens: int
    output_tokens: int
    embed: str | None = None
    states: str | None = None


class Reader(Protocol):
    """What we need of `tessera.rows.reader.RowReader`."""

    def start(self, spans: list[Span], selections: list[Selection]) -> Read:
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
    """

    def __init__(
        self,
        reader: Reader,
        put: Callable[[list[Outcome], Read | None], None],
        broken: Callable[[], str | None],
        hidden_size: int,
    ) -> None:
        self._reader = reader
        self._put = put
        self._broken = broken
        self._hidden_size = hidden_size
        self._outcomes: list[Outcome] = []
        self._spans: list[Span] = []
        self._selections: list[Selection] = []

    def finished(self, request: Finished) -> None:
        """Note a request. Its rows are read at the next `flush`, together with all others noted."""
        try:
            span, selection = span_of(request), selection_of(request)
        except Exception as error:  # the boundary to SGLang's scheduler: one request's failure must not end it
            logger.exception("tessera: no rows for request %s", request.key)
            message = f"no rows for this request: {error}"
            self._outcomes.append(Outcome(request.key, code=ROWS_NOT_COLLECTED, message=message))
            return
        code, message = ("", "") if selection is None else self._unanswerable(request, selection)
        if code:
            self._outcomes.append(Outcome(request.key, code=code, message=message))
            return
        tokens = None if request.embed is None else 0 if span is None else span.end - span.start
        shape = None if selection is None else (_count(selection), self._hidden_size)
        self._spans += [] if span is None else [span]
        self._selections += [] if selection is None else [selection]
        self._outcomes.append(Outcome(request.key, tokens, shape))

    def flush(self) -> None:
        """Begin to read the rows of all requests noted; to be called before anything can reuse their slots."""
        if self._outcomes:
            outcomes, spans, selections = self._outcomes, self._spans, self._selections
            self._outcomes, self._spans, self._selections = [], [], []
            self._put(*self._read(outcomes, spans, selections))
        self._reader.end_step()

    def _unanswerable(self, request: Finished, selection: Selection) -> tuple[str, str]:
        beyond = [position for position in selection.positions or () if position >= selection.end]
        if beyond:
            return NO_SUCH_POSITION, f"position {beyond[0]} is not among the {selection.end} rows of this request"
        values = _count(selection) * self._hidden_size
        if values > MAX_LISTED_VALUES and StateOptions.from_wire(request.states).format is Format.LIST:
            return TOO_MANY_VALUES, f"{values} values are too many for a list; ask with hidden_states_format base64"
        return "", ""

    def _read(
        self, outcomes: list[Outcome], spans: list[Span], selections: list[Selection]
    ) -> tuple[list[Outcome], Read | None]:
        broken = self._broken()
        if broken is not None:
            return _failed(outcomes, f"the row store is broken, restart the server: {broken}"), None
        try:
            return outcomes, self._reader.start(spans, selections) if spans or selections else None
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


def _count(selection: Selection) -> int:
    return selection.end - selection.start if selection.positions is None else len(selection.positions)


def _failed(outcomes: list[Outcome], message: str) -> list[Outcome]:
    return [
        replace(outcome, code=ROW_STORE_FAILED, message=message) if outcome.has_vector or outcome.has_rows else outcome
        for outcome in outcomes
    ]
