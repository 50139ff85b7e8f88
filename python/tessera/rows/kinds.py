"""The kinds of reads of the row store: how each is launched, and what comes out of its bytes in the main process."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from tessera.rows.reads import Frame, Points, Pool, Pooled, PromptIds, RawRows, Rows, Top, Value
from tessera_kernels.ops.rows.pool_rows import Reduce, Span, pool_rows
from tessera_kernels.ops.rows.top_rows import INDEX_BYTES, VALUE_BYTES, Chunk, Workspace, top_rows

_EXPONENTS = {"bfloat16": ("<u2", 0x7F80), "float16": ("<u2", 0x7C00), "float32": ("<u4", 0x7F800000)}
"""Which integers hold the bits of a dtype, and which of these are the exponent."""


class Placed(NamedTuple):
    """A read, and the row of its request in ``req_to_token``."""

    request: int
    read: Any


class Store(NamedTuple):
    """The tensors that reads use, and where they run.

    Attributes:
        rows: ``[slots, H]``, the row store.
        slots: ``[requests, context]`` int32, SGLang's ``req_to_token``.
        topk: the most values of a `Top`.
        workspace: of its kernel.
        stream: that reads run on; None on the CPU.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    topk: int
    workspace: Workspace
    stream: torch.cuda.Stream | None


class Kind:
    """One kind of read.

    Attributes:
        name: on the wire.
        read: its type.
        on_host: whether `launch` fills pinned memory of the host; else what it gives is still to be copied.
    """

    name: ClassVar[str]
    read: ClassVar[type[Any]]
    on_host: ClassVar[bool] = True

    def launch(self, store: Store, reads: Sequence[Placed]) -> list[torch.Tensor]:
        """Begin to read, without waiting. Each returned tensor is one frame of a message."""
        return []

    def note(self, read: Any) -> Any:
        """What the main process must know of a read, as JSON."""
        raise NotImplementedError

    def decode(self, frames: Iterator[Frame], notes: Sequence[Any], dtype: str, hidden_size: int) -> Iterator[Value]:
        """The value of each read, in their order. Values may be views of frames.

        Args:
            frames: of a message; this kind takes its own.
            notes: of its reads.
            dtype: name of the rows' dtype.
            hidden_size: H.
        """
        raise NotImplementedError


class PoolKind(Kind):
    """`Pool`: vectors ``[n, H]`` float32, in one frame; none of an empty span."""

    name = "pool"
    read = Pool

    def launch(self, store: Store, reads: Sequence[Placed]) -> list[torch.Tensor]:
        spans = [
            Span(request, read.start, read.end, Reduce.MAX if read.largest else Reduce.MEAN)
            for request, read in reads
            if read.start < read.end
        ]
        return [pool_rows(store.rows, store.slots, spans, store.stream)] if spans else []

    def note(self, read: Pool) -> int:
        return max(read.end - read.start, 0)

    def decode(self, frames: Iterator[Frame], notes: Sequence[Any], dtype: str, hidden_size: int) -> Iterator[Value]:
        vectors = iter(np.frombuffer(next(frames), "<f4").reshape(-1, hidden_size) if any(notes) else ())
        for tokens in notes:
            yield Pooled(next(vectors) if tokens else None, tokens)


class RowsKind(Kind):
    """`Rows`: a frame for each, ``[n, H]`` of the model's dtype; n may be 0."""

    name = "rows"
    read = Rows
    on_host = False

    def launch(self, store: Store, reads: Sequence[Placed]) -> list[torch.Tensor]:
        with torch.cuda.stream(store.stream):  # None is none
            return [store.rows.index_select(0, _slots(store, request, read)) for request, read in reads]

    def note(self, read: Rows) -> int:
        return read.end - read.start if read.positions is None else len(read.positions)

    def decode(self, frames: Iterator[Frame], notes: Sequence[Any], dtype: str, hidden_size: int) -> Iterator[Value]:
        for count in notes:
            yield RawRows(next(frames), dtype, (count, hidden_size))


class TopKind(Kind):
    """`Top`: places and bits of all, in one frame."""

    name = "top"
    read = Top

    def launch(self, store: Store, reads: Sequence[Placed]) -> list[torch.Tensor]:
        chunks = [Chunk(request, read.start, read.end, read.mask, read.values) for request, read in reads]
        return [top_rows(store.rows, store.slots, chunks, store.topk, store.workspace, store.stream)] if chunks else []

    def note(self, read: Top) -> int:
        return read.values

    def decode(self, frames: Iterator[Frame], notes: Sequence[Any], dtype: str, hidden_size: int) -> Iterator[Value]:
        each = np.frombuffer(next(frames), np.uint8).reshape(len(notes), -1) if notes else ()
        for values, top in zip(notes, each, strict=True):
            topk = len(top) // (INDEX_BYTES + VALUE_BYTES)
            places = top[: values * INDEX_BYTES].view("<u4").astype(np.int64)
            yield Points(places, top[topk * INDEX_BYTES :][: values * VALUE_BYTES].view("<u2"))


class PromptIdsKind(Kind):
    """`PromptIds`: the note itself has the ids."""

    name = "ids"
    read = PromptIds

    def note(self, read: Any) -> Any:
        return read

    def decode(self, frames: Iterator[Frame], notes: Sequence[Any], dtype: str, hidden_size: int) -> Iterator[Value]:
        """The token ids of each prompt; no frame is read."""
        yield from notes


KINDS: tuple[Kind, ...] = (PoolKind(), RowsKind(), TopKind(), PromptIdsKind())
"""All kinds, in the order of their frames in a message."""
BY_READ = {kind.read: kind for kind in KINDS}


def is_finite(value: Value) -> bool:
    """Whether no number of a value is NaN or infinite."""
    match value:
        case Pooled(vector=vector):
            return vector is None or all_finite(vector, "float32")
        case RawRows():
            return all_finite(value.rows, value.dtype)
        case Points(bits=bits):
            return all_finite(bits, "bfloat16")
    return True


def all_finite(numbers: Any, dtype: str) -> bool:
    """Whether no exponent is all ones.

    Args:
        numbers: their bytes, or an array of them.
        dtype: name of their dtype: bfloat16, float16 or float32.
    """
    kind, exponent = _EXPONENTS[dtype]
    bits = np.frombuffer(numbers, kind)
    return bool(((bits & exponent) != exponent).all())


def _slots(store: Store, request: int, read: Rows) -> torch.Tensor:
    slots = store.slots[request, read.start : read.end].long()
    if read.positions is None:
        return slots
    positions = torch.tensor(read.positions, pin_memory=store.rows.is_cuda)
    return slots.index_select(0, positions.to(store.rows.device, non_blocking=True))
