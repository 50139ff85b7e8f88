"""Vectors as a client sends them: base64 of little-endian numbers, or nested lists. Bounded before they are decoded."""

import base64
import binascii
import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from tessera.capabilities.inject.options import Dtype
from tessera.errors import BadRequest, Described, TooLarge
from tessera.fields import choice, integer


class Bounds(NamedTuple):
    """What a payload may be.

    Attributes:
        widths: the widths that some row may have: H, and what the projections take.
        rows: the most rows: the model's context length.
        size: the most bytes.
        magnitude: the largest absolute value that a vector may have, in its final form.
    """

    widths: frozenset[int]
    rows: int
    size: int
    magnitude: float


def decode(
    field: str, embeds: object, shape: Sequence[int] | None, dtype: Dtype | None, bounds: Bounds
) -> torch.Tensor:
    """The vectors ``[n, width]`` that a client sent, in the dtype that it named (float32 for a list).

    Args:
        field: where they are, for messages; ``shape`` and ``dtype`` are its neighbours.
        embeds: base64, or a list of lists of numbers.
        shape: ``[n, width]``; may be left out beside a list.
        dtype: only for base64.
        bounds: what is allowed.

    Raises:
        BadRequest: anything about them is wrong, but for their values: `check_values`.
        TooLarge: more bytes than allowed.
    """
    parent = field.rpartition(".")[0]
    prefix = f"{parent}." if parent else ""
    if isinstance(embeds, str):
        rows, width = _shape(f"{prefix}shape", shape, bounds)
        vectors = _from_base64(field, embeds, (rows, width), choice(f"{prefix}dtype", Dtype, dtype), bounds)
    elif isinstance(embeds, list):
        vectors = _from_list(field, embeds, bounds)
        if shape is not None and list(shape) != list(vectors.shape):
            raise BadRequest(f"{prefix}shape", list(shape), f"{list(vectors.shape)}, as the list has it, or nothing")
    else:
        raise BadRequest(field, embeds, "base64 of little-endian numbers, or a list of lists of numbers")
    return vectors


def check_values(field: str, vectors: torch.Tensor, most: float, dtype: torch.dtype) -> None:
    """Refuse NaN, infinity, what the model's dtype cannot hold, and values that no embedding has.

    The last are mostly vectors in the wrong dtype or scale. One pass over the vectors.
    """
    low, high = (float(value) for value in torch.aminmax(vectors))
    largest = max(-low, high)
    if not math.isfinite(largest):  # also where there is a NaN: it is its own minimum and maximum
        row = int(torch.nonzero(~torch.isfinite(vectors).all(dim=1))[0])
        raise BadRequest(field, Described(f"NaN or infinity in row {row}"), "finite numbers")
    if largest > most:
        raise BadRequest(field, Described(f"{largest:.6g}"), f"values up to {most:g} (--injection-max-magnitude)")
    if largest > torch.finfo(dtype).max:
        raise BadRequest(
            field,
            Described(f"{largest:.6g}"),
            f"values up to {torch.finfo(dtype).max:g}, which the model's dtype holds",
        )


def _shape(field: str, shape: Sequence[int] | None, bounds: Bounds) -> tuple[int, int]:
    if shape is None:
        raise BadRequest(field, shape, "[rows, width]")
    rows, width = shape
    _check_width(f"{field}[1]", width, bounds)
    return integer(f"{field}[0]", rows, 1, bounds.rows), width


def _check_width(field: str, width: int, bounds: Bounds) -> None:
    if width not in bounds.widths:
        raise BadRequest(field, width, " or ".join(str(known) for known in sorted(bounds.widths)))


def _from_base64(field: str, text: str, shape: tuple[int, int], dtype: Dtype, bounds: Bounds) -> torch.Tensor:
    numbers: torch.dtype = getattr(torch, dtype)
    size = shape[0] * shape[1] * numbers.itemsize
    if size > bounds.size:
        raise TooLarge(field, Described(f"{size} bytes"), f"up to {bounds.size} (--injection-max-megabytes)")
    expected = 4 * ((size + 2) // 3)
    if len(text) != expected:  # before it is decoded
        allowed = f"{expected} characters of base64: {shape[0]} x {shape[1]} values of {dtype.value}, with padding"
        raise BadRequest(field, Described(f"{len(text)} characters"), allowed)
    try:
        content = bytearray(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise BadRequest(field, text, f"base64 (standard alphabet): {error}") from error
    if len(content) != size:
        raise BadRequest(field, Described(f"{len(content)} bytes"), f"{size} bytes")
    return torch.frombuffer(content, dtype=numbers).reshape(shape)


def _from_list(field: str, rows: list[object], bounds: Bounds) -> torch.Tensor:
    if not 1 <= len(rows) <= bounds.rows:
        raise BadRequest(field, Described(f"{len(rows)} rows"), f"1 to {bounds.rows} rows")
    lists = [row for row in rows if isinstance(row, list)]
    if len(lists) != len(rows):
        raise BadRequest(field, next(row for row in rows if not isinstance(row, list)), "a list of lists of numbers")
    width = len(lists[0])
    for index, row in enumerate(lists):
        if len(row) != width:
            raise BadRequest(f"{field}[{index}]", Described(f"{len(row)} values"), f"{width}, as the first row has")
    _check_width(f"{field}[0]", width, bounds)
    if len(rows) * width * 4 > bounds.size:
        raise TooLarge(
            field, Described(f"{len(rows) * width} values"), f"up to {bounds.size} bytes (--injection-max-megabytes)"
        )
    kinds = set(map(type, chain.from_iterable(lists)))
    if not kinds <= {int, float}:
        raise BadRequest(
            field, Described(f"{', '.join(sorted(kind.__name__ for kind in kinds))} values"), "numbers only"
        )
    try:
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and refused as such
            return torch.from_numpy(np.array(lists, np.float64).astype(np.float32))
    except OverflowError as error:
        raise BadRequest(field, Described("an integer beyond every float"), "finite numbers") from error
