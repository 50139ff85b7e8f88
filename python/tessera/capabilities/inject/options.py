"""What a request may ask for in ``input_embed_overrides``: parsed once, at the HTTP edge, by this one schema."""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch

from tessera.capabilities.inject.projections import Projections
from tessera.capabilities.inject.vectors import Bounds, check_values, decode
from tessera.errors import BadRequest, Described
from tessera.fields import choice, integer, known_keys
from tessera.limits import MAX_TOKEN_CHARACTERS

FIELD = "input_embed_overrides"
NORM_MATCHED = "norm-matched"

KEYS = ["positions", "token", "embeds", "shape", "dtype", "mode", "scale", "expect_neighbours", "projection"]


class Mode(StrEnum):
    """What becomes of the embedding of the token at the position."""

    REPLACE = "replace"
    ADD = "add"


Token = int | str
"""A token by its id, or as a string that the tokenizer makes one token of."""


class Neighbours(NamedTuple):
    """What must stand left and right of each position; None is anything."""

    left: Token | None = None
    right: Token | None = None


ANY = Neighbours()


@dataclass(frozen=True, slots=True, repr=False)
class Override:
    """Vectors and where they go; positions are not known yet where they are found by a token.

    Attributes:
        field: its place in the request, for messages.
        vectors: ``[n, H]``: in the model's dtype, or float32 where they meet the embedding first.
        add: added to the embedding, not put in its place.
        matched: brought to the length of the embedding first.
        positions: of each vector; None where ``token`` finds them.
        token: what stands at the positions, once for each vector, in this order.
        neighbours: what must stand beside each.
    """

    field: str
    vectors: torch.Tensor
    add: bool = False
    matched: bool = False
    positions: tuple[int, ...] | None = None
    token: Token | None = None
    neighbours: Neighbours = ANY

    def __repr__(self) -> str:
        """Short: it may be written to a log."""
        return f"<{len(self.vectors)} vectors>"


def parse(field: str, value: object, bounds: Bounds, dtype: torch.dtype, projections: Projections) -> Override:
    """Read one object of ``input_embed_overrides``.

    Args:
        field: its name, for messages.
        value: what the client sent.
        bounds: what is allowed.
        dtype: of the model.
        projections: what vectors of another width than H go through.

    Raises:
        BadRequest: the value, a key or a key's value is not allowed.
    """
    if not isinstance(value, dict):
        raise BadRequest(field, value, f"an object with {', '.join(KEYS)}")
    known_keys(field, value, KEYS)
    add = choice(f"{field}.mode", Mode, value.get("mode", Mode.REPLACE)) is Mode.ADD
    matched, factor = _scale(f"{field}.scale", value.get("scale"))
    embeds = f"{field}.embeds"
    raw = decode(embeds, value.get("embeds"), value.get("shape"), value.get("dtype"), bounds)
    raw = projections.apply(field, value.get("projection"), raw)
    vectors = _final(embeds, raw, factor, bounds, torch.float32 if add or matched else dtype)
    if matched and not bool(vectors.any(dim=1).all()):
        raise BadRequest(embeds, Described("a row of zeros"), f"rows with a length, for scale {NORM_MATCHED}")
    return Override(
        field,
        vectors,
        add,
        matched,
        _positions(f"{field}.positions", value, len(vectors), bounds.rows),
        None if value.get("token") is None else _token(f"{field}.token", value["token"]),
        _neighbours(f"{field}.expect_neighbours", value.get("expect_neighbours")),
    )


def _final(field: str, raw: torch.Tensor, factor: float | None, bounds: Bounds, dtype: torch.dtype) -> torch.Tensor:
    vectors = raw if factor is None else raw.float() * factor
    check_values(field, vectors, bounds.magnitude, dtype)
    return vectors.to(dtype)


def _scale(field: str, value: object) -> tuple[bool, float | None]:
    if value is None or value == NORM_MATCHED:
        return value is not None, None
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return False, float(value)
    raise BadRequest(field, value, f"a finite number, or {NORM_MATCHED}")


def _positions(field: str, value: dict[str, object], rows: int, most: int) -> tuple[int, ...] | None:
    positions = value.get("positions")
    if (positions is None) == (value.get("token") is None):
        raise BadRequest(field, positions, "either positions or token, and not both")
    if positions is None:
        return None
    if not isinstance(positions, list) or len(positions) != rows:
        raise BadRequest(field, positions, f"a list of {rows} token positions, one for each vector")
    return tuple(integer(f"{field}[{i}]", item, 0, most - 1) for i, item in enumerate(positions))


def _token(field: str, value: object) -> Token:
    if isinstance(value, str) and 1 <= len(value) <= MAX_TOKEN_CHARACTERS:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise BadRequest(field, value, "a token id, or the text of one token")


def _neighbours(field: str, value: object) -> Neighbours:
    if value is None:
        return ANY
    if not isinstance(value, dict) or not value:
        raise BadRequest(field, value, "an object with left, right, or both")
    known_keys(field, value, ["left", "right"])
    sides = {side: _token(f"{field}.{side}", own) for side, own in value.items() if own is not None}
    return Neighbours(**sides)
