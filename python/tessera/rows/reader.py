"""Read the row store without stalling the scheduler or the forward that is running."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from tessera.rows.kinds import KINDS, Kind, Placed, Store
from tessera_kernels.ops.rows.top_rows import Workspace


class Fetched(NamedTuple):
    """The result of a read.

    Attributes:
        tensors: by the order of `tessera.rows.kinds.KINDS`, what each kind gave: a frame of a message each.
        hidden_size: H.
        dtype: name of the rows' dtype.
    """

    tensors: tuple[list[torch.Tensor], ...]
    hidden_size: int
    dtype: str


class Copies(NamedTuple):
    """The progress of a read on a GPU.

    Attributes:
        source: what is copied, or filled: tensors of our own, whatever becomes of the slots. They stay until all of it
            arrived.
        started: recorded before the read; None where nobody wants to know how long it took.
        gathered: recorded once the source is filled.
        arrived: recorded once all of it is on the host.
    """

    source: Fetched
    started: torch.cuda.Event | None
    gathered: torch.cuda.Event
    arrived: torch.cuda.Event


class Read:
    """A read of the row store, on its way to the host.

    Args:
        fetched: tensors on the host.
        copies: what fills them; None where they are filled.
        seconds: how long that took, where it was not on a GPU.
    """

    def __init__(self, fetched: Fetched, copies: Copies | None = None, seconds: float = 0.0) -> None:
        self._fetched = fetched
        self._copies = copies
        self._seconds = seconds

    def result(self, *, wait: bool = False) -> Fetched | None:
        """The whole result; None if it has not arrived and ``wait`` is false."""
        if self._copies is not None and not self._copies.arrived.query():
            if not wait:
                return None
            self._copies.arrived.synchronize()
        return self._fetched

    def seconds(self) -> float:
        """Seconds that pooling and gathering took. Call it once the result has arrived."""
        if self._copies is None or self._copies.started is None:
            return self._seconds
        milliseconds: float = self._copies.started.elapsed_time(self._copies.gathered)
        return milliseconds / 1000


class RowReader:
    """Reads the row store on a stream of its own.

    When the scheduler handles the result of step t, step t+1 may be running already. The rows of step t are complete
    (their copy event was awaited) and t+1 writes other slots, so a second stream can read them meanwhile. Whatever is
    launched later and may reuse the slots must wait for the read: SGLang's forward stream waits for the scheduler's
    stream before each forward, so it is enough that the latter, the current one, waits for it. The other way round the
    read waits for what the scheduler's stream had to do at the end of the step before (`end_step`), where the map may
    have been changed; not for what it has to do now, which itself waits for the running forward.

    Args:
        rows: ``[slots, H]``, the row store.
        req_to_token: ``[requests, context]`` int32, SGLang's map from request and position to KV slot.
        topk: how many values of largest magnitude are fetched of a chunk, at most.
        timed: whether each read says how long it took.
    """

    def __init__(self, rows: torch.Tensor, req_to_token: torch.Tensor, topk: int, *, timed: bool = False) -> None:
        self._timed = timed
        self._stream = torch.cuda.Stream(rows.device, priority=-1) if rows.is_cuda else None
        self._copying = torch.cuda.Stream(rows.device) if rows.is_cuda else None
        self._settled = torch.cuda.Event() if rows.is_cuda else None
        self._store = Store(rows, req_to_token, topk, Workspace(), self._stream)

    def end_step(self) -> None:
        """Mark the end of a step on the current stream: later reads see the map as it is then."""
        if self._settled is not None:
            self._settled.record(torch.cuda.current_stream())

    def start(self, reads: Mapping[Kind, Sequence[Placed]]) -> Read:
        """Begin to read; returns at once. The rows must be complete, and the slots still the requests' own.

        Args:
            reads: of each kind that is wanted.
        """
        try:
            return self._start(reads)
        except Exception:
            # torch does not know that kernels write to pinned memory: none may run when that is given to somebody else.
            if self._stream is not None:
                self._stream.synchronize()
            raise

    def _start(self, reads: Mapping[Kind, Sequence[Placed]]) -> Read:
        if self._stream is None or self._copying is None or self._settled is None:
            begin = time.perf_counter()
            fetched = self._fetch(reads)
            return Read(fetched, seconds=time.perf_counter() - begin)
        started = torch.cuda.Event(enable_timing=True) if self._timed else None
        gathered = torch.cuda.Event(enable_timing=self._timed)
        self._stream.wait_event(self._settled)
        if started is not None:
            started.record(self._stream)
        fetched = self._fetch(reads)
        gathered.record(self._stream)
        torch.cuda.current_stream().wait_event(gathered)
        if all(kind.on_host for kind in reads):
            return Read(fetched, Copies(fetched, started, gathered, gathered))
        arrived = torch.cuda.Event()
        with torch.cuda.stream(self._copying):  # not on the stream of reads: the next forward waits for the next read
            self._copying.wait_event(gathered)
            copied = tuple(
                own if kind.on_host else [_to_host(tensor) for tensor in own]
                for kind, own in zip(KINDS, fetched.tensors, strict=True)
            )
            arrived.record(self._copying)
        return Read(fetched._replace(tensors=copied), Copies(fetched, started, gathered, arrived))

    def _fetch(self, reads: Mapping[Kind, Sequence[Placed]]) -> Fetched:
        rows = self._store.rows
        tensors = tuple(kind.launch(self._store, reads[kind]) if kind in reads else [] for kind in KINDS)
        return Fetched(tensors, rows.shape[1], str(rows.dtype).removeprefix("torch."))


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Begin to copy a tensor into pinned memory, which torch reuses for the next copy when this one is dropped."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
