"""What a request may ask for in ``input_embed_overrides`` and ``input_embeds_b64``, and what it is once decoded."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta

from tessera.capabilities.inject.projections import Projections
from tessera.capabilities.inject.vectors import Bounds, Dtype, check_values, decode
from tessera.errors import BadRequest, Described
from tessera.fields import integer
from tessera.limits import MAX_OVERRIDES, MAX_TOKEN_CHARACTERS

FIELD = "input_embed_overrides"

_ON = "only on a server started with --enable-injection"
_BASE64 = {"type": "string", "description": "base64 of little-endian numbers, row by row"}
_ROWS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 1}, "minItems": 1}
_DTYPE = Meta(description="of the numbers in base64")


class Mode(StrEnum):
    """What becomes of the embedding of the token at the position."""

    REPLACE = "replace"
    ADD = "add"


Token = Annotated[
    Annotated[int, Meta(ge=0)] | Annotated[str, Meta(min_length=1, max_length=MAX_TOKEN_CHARACTERS)],
    Meta(extra={"allowed": "a token id, or the text of one token"}),
]
"""A token by its id, or as a string that the tokenizer makes one token of."""
Shape = Annotated[
    tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=2, max_length=2, extra={"allowed": "[rows, width]"})
]
"""Of vectors in base64."""


class Neighbours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must stand left and right of each position; None is anything."""

    left: Annotated[Token | None, Meta(description="the token before the position")] = None
    right: Annotated[Token | None, Meta(description="the token after it")] = None


ANY = Neighbours()


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object of ``input_embed_overrides``."""

    positions: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)] | None,
        Meta(
            description="token position of each vector, from 0; either positions or token",
            extra={"allowed": "a list of token positions, one for each vector"},
        ),
    ] = None
    token: Annotated[
        Token | None,
        Meta(
            description="the vectors go where this token stands, by its id or its text; as often as there are vectors"
        ),
    ] = None
    embeds: Annotated[Any, Meta(description="the vectors", extra_json_schema={"anyOf": [_BASE64, _ROWS]})]
    shape: Annotated[Shape | None, Meta(description="[vectors, width]; required beside base64")] = None
    dtype: Annotated[Dtype | None, _DTYPE] = None
    mode: Annotated[Mode, Meta(description="put in place of the token's embedding, or added to it")] = Mode.REPLACE
    scale: Annotated[
        float | Literal["norm-matched"] | None,
        Meta(description="a factor, or norm-matched: each vector gets the length of the embedding that it meets"),
    ] = None
    expect_neighbours: Annotated[
        Annotated[Neighbours, Meta(extra_json_schema={"minProperties": 1})] | None,
        Meta(
            description="the tokens that must stand left and right of each position",
            extra={"allowed": "an object with left, right, or both"},
        ),
    ] = None
    projection: Annotated[
        str | None,
        Meta(
            description="name of a projection on the server, for vectors of another width than the model's",
            extra={"allowed": "the name of a projection"},
        ),
    ] = None


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One object of ``input_embeds_b64``."""

    data: Annotated[str, Meta(description=_BASE64["description"], extra={"allowed": "base64 of little-endian numbers"})]
    shape: Annotated[Shape, Meta(description="[tokens, width]")]
    dtype: Annotated[Dtype, _DTYPE]


OfPrompt = Annotated[tuple[Override, ...], Meta(max_length=MAX_OVERRIDES)] | Override | None
"""What one of several prompts has; for a single prompt a list is several objects."""


class InjectFields(msgspec.Struct, frozen=True):
    """The fields of a request, but for what is in their vectors: `tessera.capabilities.inject.admission`.

    ``input_embeds`` is SGLang's. It and ``input_embeds_b64`` are prompts, so only ``/generate`` takes them.
    """

    input_embed_overrides: Annotated[
        Override | Annotated[tuple[OfPrompt, ...], Meta(min_length=1, max_length=MAX_OVERRIDES)] | None,
        Meta(description=f"put vectors into the embeddings of the prompt; {_ON}"),
    ] = None
    input_embeds: Annotated[Any, Meta(extra={"generate": True, "stock": True})] = None
    input_embeds_b64: Annotated[
        Matrix | Annotated[tuple[Matrix, ...], Meta(min_length=1)] | None,
        Meta(description=f"all embeddings of a prompt, as base64; {_ON}", extra={"generate": True}),
    ] = None


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


def decoded(field: str, asked: Override, bounds: Bounds, dtype: torch.dtype, projections: Projections) -> Decoded:
    """Decode one object of ``input_embed_overrides``, and check what depends on its vectors.

    Args:
        field: its name, for messages.
        asked: what the client sent.
        bounds: what is allowed.
        dtype: of the model.
        projections: what vectors of another width than H go through.

    Raises:
        BadRequest: its vectors or positions are not allowed.
    """
    add, matched = asked.mode is Mode.ADD, isinstance(asked.scale, str)
    embeds = f"{field}.embeds"
    raw = decode(embeds, asked.embeds, asked.shape, asked.dtype, bounds)
    vectors = projections.apply(field, asked.projection, raw)
    if asked.scale is not None and not isinstance(asked.scale, str):
        vectors = vectors.float() * float(asked.scale)
    dtype = torch.float32 if add or matched else dtype
    check_values(embeds, vectors, bounds.magnitude, dtype)
    if matched and not bool(vectors.any(dim=1).all()):
        raise BadRequest(embeds, Described("a row of zeros"), f"rows with a length, for scale {asked.scale}")
    _check_positions(f"{field}.positions", asked, len(vectors), bounds.rows)
    neighbours = asked.expect_neighbours or ANY
    return Decoded(field, vectors.to(dtype), add, matched, asked.positions, asked.token, neighbours)


def _check_positions(field: str, asked: Override, rows: int, most: int) -> None:
    positions = None if asked.positions is None else list(asked.positions)
    if (positions is None) == (asked.token is None):
        raise BadRequest(field, positions, "either positions or token, and not both")
    if positions is not None and len(positions) != rows:
        raise BadRequest(field, positions, f"a list of {rows} token positions, one for each vector")
    for i, position in enumerate(positions or ()):
        integer(f"{field}[{i}]", position, 0, most - 1)
