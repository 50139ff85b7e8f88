"""What crosses when requests finish: outcomes, one block of vectors, and the raw rows of those that asked for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessera.errors import ROWS_NOT_FINITE
from tessera.rows.reader import Fetched

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request.

    Attributes:
        key: what the main process gave the request: a token of ours and SGLang's request id.
        embedding_tokens: how many rows were pooled; 0 where there were none, None where no embedding was asked for.
        states_shape: ``(n, H)`` of its raw rows, None where none were asked for.
        code: "" or a code of `tessera.errors`; then nothing else belongs to it.
        message: what went wrong, and what to do.
    """

    key: str
    embedding_tokens: int | None = None
    states_shape: tuple[int, int] | None = None
    code: str = ""
    message: str = ""

    @property
    def has_vector(self) -> bool:
        """Whether a vector belongs to it."""
        return bool(self.embedding_tokens) and not self.code

    @property
    def has_rows(self) -> bool:
        """Whether raw rows belong to it; there may be none of them."""
        return self.states_shape is not None and not self.code


class Delivered(NamedTuple):
    """An outcome and what belongs to it: the vector, and the bytes of the raw rows with the name of their dtype."""

    outcome: Outcome
    vector: Vectors | None = None
    rows: bytes | None = None
    dtype: str = ""


def pack(outcomes: Sequence[Outcome], fetched: Fetched | None) -> list[bytes]:
    """The frames of one message: a JSON header, the vectors, and one frame for the raw rows of each that has some.

    An outcome whose vector or rows are not finite becomes a failure.

    Args:
        outcomes: of the requests that finished in a step.
        fetched: a vector for each outcome that has one and rows for each that has some, in their order.
    """
    fetched = fetched or Fetched(torch.empty((0, 0)), [])
    # One check for all vectors: this thread shares the interpreter with the scheduler.
    vectors = iter(enumerate(torch.isfinite(fetched.vectors).all(dim=1).tolist()))
    rows = iter(fetched.rows)
    checked: list[Outcome] = []
    kept: list[int] = []
    row_frames: list[bytes] = []
    for outcome in outcomes:
        index, finite = next(vectors) if outcome.has_vector else (None, True)
        own = next(rows) if outcome.has_rows else None
        if not finite or not (own is None or bool(torch.isfinite(own).all())):
            checked.append(_not_finite(outcome))
            continue
        checked.append(outcome)
        kept += [] if index is None else [index]
        row_frames += [] if own is None else [_bytes(own)]
    dtype = str(fetched.rows[0].dtype).removeprefix("torch.") if fetched.rows else ""
    header = {"dtype": dtype, "outcomes": [asdict(outcome) for outcome in checked]}
    return [json.dumps(header).encode(), fetched.vectors[kept].numpy().tobytes(), *row_frames]


def unpack(frames: Sequence[bytes]) -> Iterator[Delivered]:
    """Inverse of `pack`."""
    header = json.loads(frames[0])
    outcomes = [_outcome(fields) for fields in header["outcomes"]]
    count = sum(outcome.has_vector for outcome in outcomes)
    vectors = iter(np.frombuffer(frames[1], "<f4").reshape(count, -1) if count else ())
    rows = iter(frames[2:])
    for outcome in outcomes:
        vector = next(vectors) if outcome.has_vector else None
        yield Delivered(outcome, vector, next(rows) if outcome.has_rows else None, header["dtype"])


def _outcome(fields: dict[str, Any]) -> Outcome:
    shape = fields.pop("states_shape")
    return Outcome(**fields, states_shape=None if shape is None else tuple(shape))


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _not_finite(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        code=ROWS_NOT_FINITE,
        message="a hidden state is not finite: a weight update invalidated cached rows (POST /flush_cache), or the "
        "model overflowed",
    )
