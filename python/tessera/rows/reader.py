"""Read rows of finished requests, pooled or raw, without stalling the scheduler or the forward that is running."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tessera_kernels.ops.rows.pool_rows import Span, pool_rows
from tessera_kernels.ops.rows.top_rows import Chunk, Workspace, top_rows

_NOTHING = torch.empty((0, 0))


class Selection(NamedTuple):
    """Raw rows of the request in row ``request`` of ``req_to_token``: positions ``start .. end-1``, or those named."""

    request: int
    start: int
    end: int
    positions: tuple[int, ...] | None = None


class Fetched(NamedTuple):
    """What was asked for.

    Attributes:
        vectors: pooled, ``[n, H]`` float32, on the host from the beginning.
        rows: raw rows ``[rows, H]`` of each selection, model dtype.
        tops: values of largest magnitude of each chunk, ``[n, bytes]``: see
            `tessera_kernels.ops.rows.top_rows.top_rows`; on the host from the beginning.
    """

    vectors: torch.Tensor
    rows: list[torch.Tensor]
    tops: torch.Tensor


class Copies(NamedTuple):
    """How far a read on a GPU is.

    Attributes:
        source: what is copied, or filled: tensors of our own, whatever becomes of the slots. They stay until all of it
            arrived.
        begun: recorded before the read; None where nobody wants to know how long it took.
        gathered: recorded once the source is filled.
        arrived: recorded once all of it is on the host.
    """

    source: Fetched
    begun: torch.cuda.Event | None
    gathered: torch.cuda.Event
    arrived: torch.cuda.Event


class Read:
    """What was asked for, out of the row store and on its way to the host.

    Args:
        fetched: tensors on the host.
        copies: what fills them; None where they are filled.
        seconds: how long that took, where it was not on a GPU.
    """

    def __init__(self, fetched: Fetched, copies: Copies | None = None, seconds: float = 0.0) -> None:
        self._fetched = fetched
        self._copies = copies
        self._seconds = seconds

    def take(self, *, wait: bool = False) -> Fetched | None:
        """All of it; None where it has not arrived and nobody waits."""
        if self._copies is not None and not self._copies.arrived.query():
            if not wait:
                return None
            self._copies.arrived.synchronize()
        return self._fetched

    def seconds(self) -> float:
        """How long pooling and gathering took. Call it once all has arrived."""
        if self._copies is None or self._copies.begun is None:
            return self._seconds
        milliseconds: float = self._copies.begun.elapsed_time(self._copies.gathered)
        return milliseconds / 1000


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
        self._copying = torch.cuda.Stream(rows.device) if rows.is_cuda else None
        self._settled = torch.cuda.Event() if rows.is_cuda else None
        self._workspace = Workspace()

    def end_step(self) -> None:
        """Mark the end of a step on the current stream: later reads see the map as it is then."""
        if self._settled is not None:
            self._settled.record(torch.cuda.current_stream())

    def start(self, spans: Sequence[Span], selections: Sequence[Selection] = (), chunks: Sequence[Chunk] = ()) -> Read:
        """Begin to pool each span, to fetch each selection and to look into each chunk; returns at once.

        The rows must be complete, and the slots still the requests' own.
        """
        try:
            return self._start(spans, selections, chunks)
        except Exception:
            # torch does not know that kernels write to pinned memory: none may run when that is given to somebody else.
            if self._stream is not None:
                self._stream.synchronize()
            raise

    def _start(self, spans: Sequence[Span], selections: Sequence[Selection], chunks: Sequence[Chunk]) -> Read:
        if self._stream is None or self._copying is None or self._settled is None:
            begin = time.perf_counter()
            fetched = self._fetch(spans, selections, chunks)
            return Read(fetched, seconds=time.perf_counter() - begin)
        begun = torch.cuda.Event(enable_timing=True) if self._timed else None
        gathered = torch.cuda.Event(enable_timing=self._timed)
        self._stream.wait_event(self._settled)
        if begun is not None:
            begun.record(self._stream)
        fetched = self._fetch(spans, selections, chunks)
        gathered.record(self._stream)
        torch.cuda.current_stream().wait_event(gathered)
        if not selections:  # vectors and values are on the host already
            return Read(fetched, Copies(fetched, begun, gathered, gathered))
        arrived = torch.cuda.Event()
        with torch.cuda.stream(self._copying):  # not on the stream of reads: the next forward waits for the next read
            self._copying.wait_event(gathered)
            rows = [_to_host(tensor) for tensor in fetched.rows]
            arrived.record(self._copying)
        return Read(fetched._replace(rows=rows), Copies(fetched, begun, gathered, arrived))

    def _fetch(self, spans: Sequence[Span], selections: Sequence[Selection], chunks: Sequence[Chunk]) -> Fetched:
        rows, slots, stream = self._rows, self._req_to_token, self._stream
        return Fetched(
            pool_rows(rows, slots, spans, stream) if spans else _NOTHING,
            self._gather(selections) if selections else [],
            top_rows(rows, slots, chunks, self._topk, self._workspace, stream) if chunks else _NOTHING,
        )

    def _gather(self, selections: Sequence[Selection]) -> list[torch.Tensor]:
        with torch.cuda.stream(self._stream):  # None is none
            return [self._rows.index_select(0, self._slots(selection)) for selection in selections]

    def _slots(self, selection: Selection) -> torch.Tensor:
        slots = self._req_to_token[selection.request, selection.start : selection.end].long()
        if selection.positions is None:
            return slots
        positions = torch.tensor(selection.positions, pin_memory=self._rows.is_cuda)
        return slots.index_select(0, positions.to(self._rows.device, non_blocking=True))


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Begin to copy it into pinned memory, which torch keeps for the next copy when this one is dropped."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
