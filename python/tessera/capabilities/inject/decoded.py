"""Overrides with their vectors, as the server holds them."""

from dataclasses import dataclass

import torch

from tessera.capabilities.inject.options import ANY, Mode, Neighbours, Override, Token
from tessera.capabilities.inject.projections import Projections
from tessera.capabilities.inject.vectors import Bounds, check_values, decode
from tessera.errors import BadRequest, Described
from tessera.fields import integer


@dataclass(frozen=True, slots=True, repr=False)
class Decoded:
    """An override with its vectors; positions are not known yet where they are found by a token.

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


def with_vectors(field: str, given: Override, bounds: Bounds, dtype: torch.dtype, projections: Projections) -> Decoded:
    """Decode one object of ``input_embed_overrides``, and check what depends on its vectors.

    Args:
        field: its name, for messages.
        given: what the client sent.
        bounds: what is allowed.
        dtype: of the model.
        projections: what vectors of another width than H go through.

    Raises:
        BadRequest: its vectors or positions are not allowed.
    """
    add, matched = given.mode is Mode.ADD, isinstance(given.scale, str)
    embeds = f"{field}.embeds"
    raw = decode(embeds, given.embeds, given.shape, given.dtype, bounds)
    vectors = projections.apply(field, given.projection, raw)
    if given.scale is not None and not isinstance(given.scale, str):
        vectors = vectors.float() * float(given.scale)
    dtype = torch.float32 if add or matched else dtype
    check_values(embeds, vectors, bounds.magnitude, dtype)
    if matched and not bool(vectors.any(dim=1).all()):
        raise BadRequest(embeds, Described("a row of zeros"), f"rows with a length, for scale {given.scale}")
    _check_positions(f"{field}.positions", given, len(vectors), bounds.rows)
    neighbours = given.expect_neighbours or ANY
    return Decoded(field, vectors.to(dtype), add, matched, given.positions, given.token, neighbours)


def _check_positions(field: str, given: Override, rows: int, most: int) -> None:
    positions = None if given.positions is None else list(given.positions)
    if (positions is None) == (given.token is None):
        raise BadRequest(field, positions, "either positions or token, and not both")
    if positions is not None and len(positions) != rows:
        raise BadRequest(field, positions, f"a list of {rows} token positions, one for each vector")
    for i, position in enumerate(positions or ()):
        integer(f"{field}[{i}]", position, 0, most - 1)
