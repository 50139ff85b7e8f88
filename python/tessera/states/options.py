"""What a request may ask for in ``return_hidden_states`` and ``hidden_states_format``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Self

from tessera.errors import BadRequest
from tessera.fields import choice, integer, json_object, known_keys
from tessera.limits import MAX_POSITIONS
from tessera.rows.span import Over

FIELD = "return_hidden_states"
FORMAT_FIELD = "hidden_states_format"


class Format(StrEnum):
    """How the rows are written into JSON."""

    LIST = "list"
    """Nested lists of numbers, as SGLang has them: the prompt's rows as one list, then each generated row."""
    BASE64 = "base64"
    """Little-endian bytes of the model's own dtype, with ``dtype`` and ``shape`` beside them."""
    SAFETENSORS = "safetensors"
    """A safetensors file that holds ``hidden_states``, in base64."""


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The validated options of one request.

    Attributes:
        last: only the last row, as a flat list.
        over: rows of which tokens.
        positions: rows of these token positions, in this order; None for all of ``over``.
        format: how they are written.
    """

    last: bool = False
    over: Over = Over.ALL
    positions: tuple[int, ...] | None = None
    format: Format = Format.LIST

    @classmethod
    def parse(cls, value: object, form: object = None) -> Self | None:
        """Read what a client sent. ``None`` and ``False`` ask for nothing.

        Args:
            value: ``return_hidden_states``: a boolean, "last", or an object with ``over`` and ``positions``.
            form: ``hidden_states_format``; None is the list.

        Raises:
            BadRequest: a value, a key or a key's value is not allowed.
        """
        written = choice(FORMAT_FIELD, Format, Format.LIST if form is None else form)
        if value is None or value is False:
            return None
        if value is True or value == "last":
            return cls(last=value == "last", format=written)
        if not isinstance(value, dict):
            raise BadRequest(FIELD, value, 'true, false, "last", or an object with over, positions')
        known_keys(FIELD, value, ["over", "positions"])
        over = choice(f"{FIELD}.over", Over, value.get("over", Over.ALL))
        return cls(over=over, positions=_positions(value), format=written)

    @property
    def spans(self) -> bool:
        """Whether how many rows there are depends on how many tokens there are."""
        return self.positions is None and not self.last

    def to_wire(self) -> str:
        """One flat JSON string, as `tessera.embed.options.EmbedOptions.to_wire`."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    @lru_cache(maxsize=32)
    def from_wire(cls, wire: str) -> Self:
        """Inverse of `to_wire`, by the same schema; remembered, for positions may be many, and samples share them.

        Raises:
            BadRequest: not a string of ours.
        """
        value = json_object(wire) or {}
        selected = "last" if value.pop("last", None) is True else {k: value[k] for k in value if k != "format"}
        options = cls.parse(selected, value.get("format")) if value else None
        if options is None:
            raise BadRequest("sampling_params.custom_params.tessera_states", wire, f"reserved; use {FIELD}")
        return options


def _positions(value: dict[str, object]) -> tuple[int, ...] | None:
    positions = value.get("positions")
    if positions is None:
        return None
    if "over" in value and value["over"] not in (None, Over.ALL):
        raise BadRequest(f"{FIELD}.positions", positions, "either positions or over")
    if not isinstance(positions, list) or not 1 <= len(positions) <= MAX_POSITIONS:
        raise BadRequest(f"{FIELD}.positions", positions, f"a list of 1 to {MAX_POSITIONS} token positions")
    return tuple(integer(f"{FIELD}.positions[{i}]", item, 0, None) for i, item in enumerate(positions))
