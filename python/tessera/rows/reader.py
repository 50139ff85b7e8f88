"""Read rows of finished requests, pooled or raw, without stalling the scheduler or the forward that is running."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tessera.rows.staging import Staging
from tessera_kernels.pool_rows import Span, pool_rows
from tessera_kernels.top_rows import Chunk, top_rows


class Selection(NamedTuple):
    """Raw rows of the request in row ``request`` of ``req_to_token``: positions ``start .. end-1``, or those named."""

    request: int
    start: int
    end: int
    positions: tuple[int, ...] | None = None


class Fetched(NamedTuple):
    """Tensors on the device, or after `Read.wait` on the host.

    Attributes:
        vectors: pooled, ``[n, H]`` float32.
        rows: raw rows ``[rows, H]`` of each selection, model dtype.
        tops: values of largest magnitude of each chunk, ``[n, bytes]``: see `tessera_kernels.top_rows.top_rows`.
    """

    vectors: torch.Tensor
    rows: list[torch.Tensor]
    tops: torch.Tensor


class Read:
    """What was asked for, out of the row store and on its way to the host.

    Args:
        fetched: tensors of our own: whatever becomes of the slots, they stay.
        gathered: recorded once they are filled; None where they are on the host already.
        staging: brings them to the host; None likewise.
        begun: recorded before; None where nobody wants to know how long it took.

    Attributes:
        seconds: how long pooling and gathering took on the device; 0 before `wait`.
    """

    def __init__(
        self,
        fetched: Fetched,
        gathered: torch.cuda.Event | None = None,
        staging: Staging | None = None,
        begun: torch.cuda.Event | None = None,
    ) -> None:
        self._fetched = fetched
        self._gathered = gathered
        self._staging = staging

        self._begun = begun
        self.seconds = 0.0

    def wait(self) -> Fetched:
        """All of it on the host. Blocks this thread, not the interpreter; always call it from the same thread."""
        if self._gathered is None or self._staging is None:
            return self._fetched
        vectors, tops, *rows = (
            self._staging.fetch(tensor, self._gathered)
            for tensor in (self._fetched.vectors, self._fetched.tops, *self._fetched.rows)
        )
        if self._begun is not None:
            self.seconds = self._begun.elapsed_time(self._gathered) / 1000
        return Fetched(vectors, rows, tops)


class RowReader:
    """Reads the row store on a stream of its own.

    When the scheduler handles the result of step t, step t+1 may be running already. The rows of step t are complete
    (their copy event was awaited) and t+1 writes other slots, so a second stream can read them meanwhile. Whatever is
    launched later and may reuse the slots must wait for the read: SGLang's forward stream waits for the scheduler's
    stream before each forward, so it is enough that the latter, the current one, waits for it. The other way round the
    read waits for what the scheduler's stream had to do at the end of the step before (`end_step`), where the map may
    have been changed; not for what it has to do now, which is itself behind the running forward.

    Args:
        rows: ``[slots, H]``, the row store.
        req_to_token: ``[requests, context]`` int32, SGLang's map from request and position to KV slot.
        topk: how many values of largest magnitude are fetched of a chunk, at most.
        timed: whether each read says how long it took.
    """

    def __init__(self, rows: torch.Tensor, req_to_token: torch.Tensor, topk: int, *, timed: bool = False) -> None:
        self._rows = rows
        self._req_to_token = req_to_token
        self._topk = topk
        self._timed = timed
        self._stream = torch.cuda.Stream(rows.device, priority=-1) if rows.is_cuda else None
        self._settled = torch.cuda.Event() if rows.is_cuda else None
        self._staging = Staging(rows.device) if rows.is_cuda else None

    def end_step(self) -> None:
        """Mark the end of a step on the current stream: later reads see the map as it is then."""
        if self._settled is not None:
            self._settled.record(torch.cuda.current_stream())

    def start(self, spans: Sequence[Span], selections: Sequence[Selection] = (), chunks: Sequence[Chunk] = ()) -> Read:
        """Begin to pool each span, to fetch each selection and to look into each chunk; returns at once.

        The rows must be complete, and the slots still the requests' own.
        """
        if self._stream is None or self._settled is None:
            begin = time.perf_counter()
            read = Read(self._fetch(spans, selections, chunks))
            read.seconds = time.perf_counter() - begin
            return read
        begun = torch.cuda.Event(enable_timing=True) if self._timed else None
        gathered = torch.cuda.Event(enable_timing=self._timed)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._settled)
            if begun is not None:
                begun.record(self._stream)
            fetched = self._fetch(spans, selections, chunks)
            gathered.record(self._stream)
        torch.cuda.current_stream().wait_event(gathered)
        return Read(fetched, gathered, self._staging, begun)

    def _fetch(self, spans: Sequence[Span], selections: Sequence[Selection], chunks: Sequence[Chunk]) -> Fetched:
        none = torch.empty((0, 0))
        return Fetched(
            pool_rows(self._rows, self._req_to_token, spans) if spans else none,
            [self._rows.index_select(0, self._slots(selection)) for selection in selections],
            top_rows(self._rows, self._req_to_token, chunks, self._topk) if chunks else none,
        )

    def _slots(self, selection: Selection) -> torch.Tensor:
        slots = self._req_to_token[selection.request, selection.start : selection.end].long()
        if selection.positions is None:
            return slots
        positions = torch.tensor(selection.positions, pin_memory=self._rows.is_cuda)
        return slots.index_select(0, positions.to(self._rows.device, non_blocking=True))
