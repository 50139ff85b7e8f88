"""What a request may ask for in ``return_embedding``: parsed once, at the HTTP edge, by this one schema."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from tessera.errors import BadRequest
from tessera.fields import boolean, choice, integer, json_object, known_keys
from tessera.rows.span import Over

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


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """The validated options of one request.

    Attributes:
        pooling: how rows become one vector.
        over: which tokens are pooled.
        normalize: scale the vector to Euclidean length 1 (after `dimensions`).
        dimensions: keep the first so many values; None keeps all.
        encoding_format: how the vector is written.
    """

    pooling: Pooling = Pooling.MEAN
    over: Over = Over.PROMPT
    normalize: bool = False
    dimensions: int | None = None
    encoding_format: Encoding = Encoding.FLOAT

    @classmethod
    def parse(cls, value: object, hidden_size: int | None = None) -> Self | None:
        """Read what a client sent. ``None`` and ``False`` ask for nothing.

        Raises:
            BadRequest: the value, a key or a key's value is not allowed.
        """
        if value is None or value is False:
            return None
        if value is True:
            return cls()
        if not isinstance(value, dict):
            raise BadRequest(FIELD, value, f"true, false, or an object with {', '.join(_names(cls))}")
        known_keys(FIELD, value, _names(cls))
        return cls(
            pooling=choice(f"{FIELD}.pooling", Pooling, value.get("pooling", Pooling.MEAN)),
            over=choice(f"{FIELD}.over", Over, value.get("over", Over.PROMPT)),
            normalize=boolean(f"{FIELD}.normalize", value.get("normalize", False)),
            dimensions=_dimensions(value.get("dimensions"), hidden_size),
            encoding_format=choice(f"{FIELD}.encoding_format", Encoding, value.get("encoding_format", Encoding.FLOAT)),
        )

    def to_wire(self) -> str:
        """One flat JSON string: what SGLang's ``custom_params`` carries to the scheduler in every IPC mode."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def applied(self) -> dict[str, Any]:
        """What an answer says of how its vector was made: the values in force, without what the vector itself shows."""
        return _applied(self)

    @classmethod
    @lru_cache(maxsize=1024)
    def from_wire(cls, wire: str) -> Self:
        """Inverse of `to_wire`, by the same schema; remembered, for the scheduler's thread reads the same ones again.

        Raises:
            BadRequest: not a string of ours.
        """
        options = cls.parse(json_object(wire))
        if options is None:
            raise BadRequest("sampling_params.custom_params.tessera_embed", wire, f"reserved; use {FIELD}")
        return options


@lru_cache(maxsize=1024)
def _applied(options: EmbedOptions) -> dict[str, Any]:
    shown = asdict(options)
    del shown["encoding_format"]
    return {name: value for name, value in shown.items() if value is not None}


def _names(cls: type[EmbedOptions]) -> list[str]:
    return [field.name for field in fields(cls)]


def _dimensions(value: object, hidden_size: int | None) -> int | None:
    return None if value is None else integer(f"{FIELD}.dimensions", value, 1, hidden_size)
