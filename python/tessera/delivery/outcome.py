"""The messages of delivery: outcomes of requests, and the numbers that were read for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import torch

from tessera.errors import ROWS_NOT_FINITE
from tessera.rows.kinds import KINDS, PromptIdsKind, RowsKind, is_finite
from tessera.rows.reader import Fetched
from tessera.rows.reads import Frame, Value


class Part(NamedTuple):
    """A read of an outcome: the capability that wants it, its kind, and `tessera.rows.kinds.Kind.note`."""

    capability: str
    kind: str
    note: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request, or of its reads so far.

    Attributes:
        key: what the main process gave the request: our token and SGLang's request id.
        parts: what was read for it.
        more: whether the request still runs, and another outcome of it will follow.
        resets: whether nothing of it was read before, or it was computed again: earlier outcomes are void.
        code: "" or a code of `tessera.errors`; then no rows belong to it.
        message: what went wrong, and what to do.
    """

    key: str
    parts: tuple[Part, ...] = ()
    more: bool = False
    resets: bool = True
    code: str = ""
    message: str = ""

    @property
    def has_rows(self) -> bool:
        """Whether it has values from the row store."""
        return any(
            bool(part.note) or part.kind == RowsKind.name for part in self.parts if part.kind != PromptIdsKind.name
        )


Values = Mapping[str, Sequence[Any]]
"""What was read, by capability."""


class Delivered(NamedTuple):
    """An outcome and its values."""

    outcome: Outcome
    values: Values = MappingProxyType({})


class RowStoreStats(NamedTuple):
    """Row-store statistics, sent at the start, and with each step if metrics are on.

    Attributes:
        read_seconds: how long pooling and gathering took in this step.
        store_bytes: size of the store beside the KV cache; 0 with ``--rows-on-host``.
        slots: how many rows it can hold.
        used_slots: how many KV slots are taken, by requests or by the prefix cache.
        replica: of ``--dp-size``, which has a store for each.
        kv_bytes: size of the KV cache beside it.
        host_bytes: size of the rows in the host's memory.
    """

    read_seconds: float
    store_bytes: int
    slots: int
    used_slots: int
    replica: int = 0
    kv_bytes: int = 0
    host_bytes: int = 0


def pack(outcomes: Sequence[Outcome], fetched: Fetched | None, stats: RowStoreStats | None = None) -> list[Frame]:
    """The frames of one message: a JSON header, then what each kind of read gave.

    Frames of numbers are views, not copies, and nobody looks at them here: the scheduler's thread has other work.

    Args:
        outcomes: of the requests that finished in a step.
        fetched: what was read for them, in their order; None where nothing was.
        stats: None without metrics.
    """
    # orjson writes tuples as lists, and knows no named ones.
    listed = [
        (own.key, [tuple(part) for part in own.parts], own.more, own.resets, own.code, own.message) for own in outcomes
    ]
    numbers = None if stats is None else tuple(stats)
    shape = ("", 0) if fetched is None else (fetched.dtype, fetched.hidden_size)
    header = orjson.dumps({"rows": shape, "outcomes": listed, "stats": numbers}, option=orjson.OPT_SERIALIZE_NUMPY)
    return [header, *(_view(tensor) for own in (() if fetched is None else fetched.tensors) for tensor in own)]


def unpack(frames: Sequence[Frame]) -> tuple[list[Delivered], RowStoreStats | None]:
    """Inverse of `pack`. An outcome with a number that is not finite becomes a failure."""
    header = orjson.loads(frames[0])
    stats = header["stats"]
    return list(_delivered(header, iter(frames[1:]))), None if stats is None else RowStoreStats(*stats)


def kinds_of(arrived: Sequence[Delivered]) -> str:
    """The kinds of read of the row store in a message, with "+" between them."""
    kinds = {part.kind for own in arrived for part in own.outcome.parts}
    return "+".join(sorted(kinds - {PromptIdsKind.name}))


def _delivered(header: dict[str, Any], frames: Iterator[Frame]) -> Iterator[Delivered]:
    outcomes = [Outcome(key, tuple(Part(*part) for part in parts), *rest) for key, parts, *rest in header["outcomes"]]
    dtype, hidden_size = header["rows"]
    values = {}
    for kind in KINDS:
        notes = [part.note for own in outcomes for part in own.parts if part.kind == kind.name]
        values[kind.name] = iter(list(kind.decode(frames, notes, dtype, hidden_size)))
    for own in outcomes:
        found: dict[str, list[Value]] = {}
        for part in own.parts:
            found.setdefault(part.capability, []).append(next(values[part.kind]))
        finite = all(is_finite(value) for each in found.values() for value in each)
        yield Delivered(own, found) if finite else Delivered(_not_finite(own))


def _view(tensor: torch.Tensor) -> Frame:
    return b"" if tensor.numel() == 0 else tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _not_finite(outcome: Outcome) -> Outcome:
    message = "a hidden state is not finite: the model overflowed for this prompt"
    return Outcome(outcome.key, code=ROWS_NOT_FINITE, message=message)
