"""What a request may ask for in ``return_embedding``."""

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tessera.errors import BadRequest
from tessera.fields import integer
from tessera.limits import MAX_SPANS
from tessera.rows.reads import Over

FIELD = "return_embedding"
APPLIED = "embedding_options"
"""The field of an answer that says how its vector was made."""


class Pooling(StrEnum):
    """How the rows of the span become one vector."""

    MEAN = "mean"
    LAST = "last"
    MAX = "max"
    FIRST = "first"


class Encoding(StrEnum):
    """How the vector is written into JSON: numbers, or base64 of little-endian float32."""

    FLOAT = "float"
    BASE64 = "base64"


Span = Annotated[
    tuple[Annotated[int, Meta(ge=0)], ...],
    Meta(min_length=2, max_length=2, extra={"allowed": "two positions: the first, and the one after the last"}),
]
"""Rows of a request, by position."""
Dimensions = Annotated[
    Annotated[int, Meta(ge=1)] | None, Meta(description="keep the first so many values; by default all")
]
Spans = Annotated[
    Annotated[tuple[Span, ...], Meta(min_length=1, max_length=MAX_SPANS)] | None,
    Meta(description="pool these rows, [first, one after the last], instead of those of over: a vector for each"),
]
POOLING = Meta(description="how rows become one vector")
NORMALIZE = Meta(description="scale the vector to Euclidean length 1, after dimensions")
ENCODING = Meta(description="numbers, or base64 of little-endian float32")


class EmbedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of one request. None keeps all ``dimensions``, and pools the tokens of ``over``."""

    pooling: Annotated[Pooling, POOLING] = Pooling.MEAN
    over: Annotated[Over, Meta(description="which tokens are pooled")] = Over.PROMPT
    normalize: Annotated[bool, NORMALIZE] = False
    dimensions: Dimensions = None
    encoding_format: Annotated[Encoding, ENCODING] = Encoding.FLOAT
    spans: Spans = None

    def applied(self) -> dict[str, Any]:
        """What an answer says of how its vector was made: the values in force, without what the vector itself shows."""
        return _applied(self)


@lru_cache(maxsize=1024)
def _applied(options: EmbedOptions) -> dict[str, Any]:
    shown = msgspec.structs.asdict(options)
    del shown["encoding_format"]
    if options.spans is not None:  # which are in the request, and may be thousands
        del shown["over"], shown["spans"]
    return {name: value for name, value in shown.items() if value is not None}


class EmbedFields(msgspec.Struct, frozen=True):
    """How a request asks for an embedding."""

    return_embedding: Annotated[
        bool | EmbedOptions | None, Meta(description="return an embedding of the request's tokens; true: the defaults")
    ] = None


def options_of(fields: EmbedFields, hidden_size: int | None, where: str = f"{FIELD}.") -> EmbedOptions | None:
    """The options that a request's field asks for; None where it asks for nothing, and defaults where it is true.

    Args:
        fields: of the request.
        hidden_size: H of the model, to bound ``dimensions``; None where it is not known.
        where: what stands before the options' names in messages.

    Raises:
        BadRequest: ``dimensions`` is above H; a span is empty.
    """
    wanted = fields.return_embedding
    if not wanted:
        return None
    options = EmbedOptions() if wanted is True else wanted
    for i, (start, end) in enumerate(options.spans or ()):
        if start >= end:
            raise BadRequest(f"{where}spans[{i}]", [start, end], "a span of at least one position")
    if options.dimensions is not None and hidden_size is not None:
        integer(f"{where}dimensions", options.dimensions, 1, hidden_size)
    return options
