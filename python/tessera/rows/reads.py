"""What can be read of the row store, and what comes of it: a few kinds of reads, which capabilities put together."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Frame = bytes | memoryview

ROWS_UNAVAILABLE = "rows_unavailable"
"""The field of an answer that says why the values that need rows are missing."""


class Over(StrEnum):
    """Which tokens are meant: the same words for embeddings and for raw states.

    With N prompt and M generated tokens there are N+M-1 rows: the last generated token was never fed back, so it has
    no row. ``output`` is therefore M-1 rows.
    """

    PROMPT = "prompt"
    OUTPUT = "output"
    ALL = "all"


class Pool(NamedTuple):
    """One vector: the mean of rows ``start .. end-1`` of a request, or their largest values; none of no rows."""

    start: int
    end: int
    largest: bool = False


class Rows(NamedTuple):
    """Raw rows: ``start .. end-1`` of a request, or those at ``positions``."""

    start: int
    end: int
    positions: tuple[int, ...] | None = None


ALL_ROWS = 0xFFFF_FFFF
"""The mask of a `Top` that selects all."""


class Top(NamedTuple):
    """The ``values`` values of largest magnitude of rows ``start .. end-1``, of those that ``mask`` selects.

    Bit i of the mask selects rows i, i+32, …
    """

    start: int
    end: int
    mask: int
    values: int


class PromptIds(NamedTuple):
    """The prompt's token ids as the scheduler has them. Needs no rows."""


Read = Pool | Rows | Top | PromptIds


class Pooled(NamedTuple):
    """The result of a `Pool`: the vector, ``[H]`` float32, or None of no rows; and the number of rows."""

    vector: Vector | None
    tokens: int


class RawRows(NamedTuple):
    """The result of `Rows`.

    Attributes:
        rows: their bytes, row by row, little-endian.
        dtype: name of their dtype: bfloat16, float16 or float32.
        shape: ``(n, H)``.
    """

    rows: Frame
    dtype: str
    shape: tuple[int, int]


class Points(NamedTuple):
    """The result of a `Top`: the values of largest magnitude.

    Attributes:
        places: ``[k]``, row times H plus column, counted from the first of the rows.
        bits: ``[k]``, the values as bfloat16.
    """

    places: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint16]


Value = Pooled | RawRows | Points | Sequence[int]
"""The result of a read; of `PromptIds` the ids."""
