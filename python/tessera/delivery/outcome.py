"""What crosses when requests finish: outcomes, blocks of vectors and of top values, and raw rows where asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import torch

from tessera.errors import ROWS_NOT_FINITE
from tessera.fingerprint.codec import Points
from tessera.rows.reader import Fetched
from tessera_kernels.ops.rows.top_rows import INDEX_BYTES, VALUE_BYTES

Vectors = npt.NDArray[np.float32]
Ids = Sequence[int] | npt.NDArray[np.int64]
Frame = bytes | memoryview

_EXPONENTS = {"bfloat16": ("<u2", 0x7F80), "float16": ("<u2", 0x7C00), "float32": ("<u4", 0x7F800000)}
"""Which integers hold the bits of a dtype, and which of these are the exponent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request.

    Attributes:
        key: what the main process gave the request: a token of ours and SGLang's request id.
        embedding_tokens: how many rows were pooled; 0 where there were none, None where no embedding was asked for.
        states_shape: ``(n, H)`` of its raw rows, None where none were asked for.
        values: how many values each of its fingerprints proves, None where none were asked for.
        more: whether the request still runs, and another outcome of it will follow.
        proven: how many of its fingerprints came before; 0 begins again, where rows were computed again.
        code: "" or a code of `tessera.errors`; then nothing else belongs to it.
        message: what went wrong, and what to do.
        input_ids: of its prompt, None where they were not asked for.
    """

    key: str
    embedding_tokens: int | None = None
    states_shape: tuple[int, int] | None = None
    values: tuple[int, ...] | None = None
    more: bool = False
    proven: int = 0
    code: str = ""
    message: str = ""
    input_ids: Ids | None = None

    @property
    def has_vector(self) -> bool:
        """Whether a vector belongs to it."""
        return bool(self.embedding_tokens) and not self.code

    @property
    def has_rows(self) -> bool:
        """Whether raw rows belong to it; there may be none of them."""
        return self.states_shape is not None and not self.code

    @property
    def tops(self) -> int:
        """How many chunks' top values belong to it."""
        return 0 if self.code or self.values is None else len(self.values)


class Delivered(NamedTuple):
    """An outcome and what belongs to it.

    Attributes:
        outcome: it.
        vector: pooled.
        rows: the bytes of its raw rows.
        dtype: the name of their dtype.
        points: the top values of each of its chunks.
        building: the fingerprints of these, once they are built; None where none are to be.
    """

    outcome: Outcome
    vector: Vectors | None = None
    rows: Frame | None = None
    dtype: str = ""
    points: tuple[Points, ...] = ()
    building: Awaitable[list[str]] | None = None


class Vitals(NamedTuple):
    """How the row store is, told with each step where metrics are on.

    Attributes:
        read_seconds: how long pooling and gathering took in this step.
        store_bytes: size of the store.
        slots: how many rows it can hold.
        used_slots: how many KV slots are taken, by requests or by the prefix cache.
        replica: of ``--dp-size``, which has a store for each.
    """

    read_seconds: float
    store_bytes: int
    slots: int
    used_slots: int
    replica: int = 0


def pack(outcomes: Sequence[Outcome], fetched: Fetched | None, vitals: Vitals | None = None) -> list[Frame]:
    """The frames of one message: a JSON header, vectors, top values, and one frame for each outcome's raw rows.

    Frames of numbers are views, not copies, and nobody looks at them here: the scheduler's thread has other work.

    Args:
        outcomes: of the requests that finished in a step.
        fetched: a vector for each outcome that has one, and rows and top values for each that has some, in their order.
        vitals: None where nobody counts.
    """
    fetched = fetched or Fetched(torch.empty(0), [], torch.empty(0))
    dtype = str(fetched.rows[0].dtype).removeprefix("torch.") if fetched.rows else ""
    counted = None if vitals is None else tuple(vitals)  # orjson knows no named tuples
    header = orjson.dumps(
        {"dtype": dtype, "outcomes": list(outcomes), "vitals": counted}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    return [header, *map(_view, (fetched.vectors, fetched.tops, *fetched.rows))]


def unpack(frames: Sequence[Frame]) -> tuple[list[Delivered], Vitals | None]:
    """Inverse of `pack`. An outcome whose vector, rows or top values are not finite becomes a failure."""
    header = orjson.loads(frames[0])
    vitals = header["vitals"]
    return list(_delivered(header, frames)), None if vitals is None else Vitals(*vitals)


def _delivered(header: dict[str, Any], frames: Sequence[Frame]) -> Iterator[Delivered]:
    outcomes = [_outcome(fields) for fields in header["outcomes"]]
    count = sum(outcome.has_vector for outcome in outcomes)
    vectors = iter(np.frombuffer(frames[1], "<f4").reshape(count, -1) if count else ())
    chunks = sum(outcome.tops for outcome in outcomes)
    tops = iter(np.frombuffer(frames[2], np.uint8).reshape(chunks, -1) if chunks else ())
    rows = iter(frames[3:])
    dtype = header["dtype"]
    for outcome in outcomes:
        vector = next(vectors) if outcome.has_vector else None
        own = next(rows) if outcome.has_rows else None
        points = tuple(_points(next(tops), values) for values in (outcome.values or ())[: outcome.tops])
        numbers = [(vector, "float32"), (own, dtype), *((chunk.bits, "bfloat16") for chunk in points)]
        finite = all(own_numbers is None or all_finite(own_numbers, kind) for own_numbers, kind in numbers)
        yield Delivered(outcome, vector, own, dtype, points) if finite else Delivered(_not_finite(outcome))


def all_finite(numbers: Frame | npt.NDArray[Any], dtype: str) -> bool:
    """Whether no exponent is all ones.

    Args:
        numbers: their bytes, or an array of them.
        dtype: name of their dtype: bfloat16, float16 or float32.
    """
    kind, exponent = _EXPONENTS[dtype]
    bits = np.frombuffer(numbers, kind)
    return bool(((bits & exponent) != exponent).all())


def _outcome(fields: dict[str, Any]) -> Outcome:
    shape, values = fields.pop("states_shape"), fields.pop("values")
    return Outcome(
        **fields,
        states_shape=None if shape is None else tuple(shape),
        values=None if values is None else tuple(values),
    )


def _points(top: npt.NDArray[np.uint8], values: int) -> Points:
    topk = len(top) // (INDEX_BYTES + VALUE_BYTES)
    places = top[: values * INDEX_BYTES].view("<u4").astype(np.int64)
    return Points(places, top[topk * INDEX_BYTES :][: values * VALUE_BYTES].view("<u2"))


def _view(tensor: torch.Tensor) -> Frame:
    return b"" if tensor.numel() == 0 else tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _not_finite(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        code=ROWS_NOT_FINITE,
        message="a hidden state is not finite: the model overflowed for this prompt",
    )
