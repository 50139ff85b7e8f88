"""What a request may ask for in ``input_embed_overrides`` and ``input_embeds_b64``.

No torch: commands without it read what may be asked.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.limits import MAX_OVERRIDES, MAX_TOKEN_CHARACTERS

FIELD = "input_embed_overrides"

_ON = "only on a server started with --enable-injection"
_BASE64 = {"type": "string", "description": "base64 of little-endian numbers, row by row"}
_ROWS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 1}, "minItems": 1}
_DTYPE = Meta(description="of the numbers in base64")


class Dtype(StrEnum):
    """The number formats of the wire, little-endian, by torch's names."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


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
"""Shape of vectors in base64."""


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
