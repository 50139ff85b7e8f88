"""What a request may ask for in ``return_hidden_states`` and ``hidden_states_format``."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.errors import BadRequest
from tessera.limits import MAX_POSITIONS
from tessera.rows.reads import Over

FIELD = "return_hidden_states"
FORMAT_FIELD = "hidden_states_format"

_Positions = Annotated[
    tuple[Annotated[int, Meta(ge=0)], ...],
    Meta(min_length=1, max_length=MAX_POSITIONS, extra={"allowed": f"a list of 1 to {MAX_POSITIONS} token positions"}),
]


class Format(StrEnum):
    """How the rows are written into JSON."""

    LIST = "list"
    """Nested lists of numbers, as SGLang has them: the prompt's rows as one list, then each generated row."""
    BASE64 = "base64"
    """Little-endian bytes of the model's own dtype, with ``dtype`` and ``shape`` beside them."""
    SAFETENSORS = "safetensors"
    """A safetensors file that holds ``hidden_states``, in base64."""


class Selected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object of ``return_hidden_states``."""

    over: Annotated[Over, Meta(description="rows of which tokens")] = Over.ALL
    positions: Annotated[_Positions | None, Meta(description="rows of these token positions, in this order")] = None


_Value = bool | Literal["last"] | Selected | None
"""The value of one prompt; "last" is its last row, as a flat list."""


class StateFields(msgspec.Struct, frozen=True):
    """How a request asks for hidden states: of which tokens, and in which format they are sent."""

    return_hidden_states: Annotated[
        _Value | tuple[_Value, ...],
        Meta(description='return hidden states: of all tokens, of the "last", or of some; a list: for each prompt'),
    ] = False
    hidden_states_format: Annotated[
        Format | None, Meta(description="nested lists of numbers (the default), or bytes in base64")
    ] = None


class StateOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of one prompt.

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

    @property
    def spans(self) -> bool:
        """Whether how many rows there are depends on how many tokens there are."""
        return self.positions is None and not self.last


def options_of(value: Any, form: Format) -> StateOptions | None:
    """The options of a prompt whose value is allowed; None where it asks for nothing.

    Raises:
        BadRequest: positions beside ``over``.
    """
    if not isinstance(value, Selected):
        return StateOptions(last=value == "last", format=form) if value else None
    if value.positions is not None and value.over is not Over.ALL:
        raise BadRequest(f"{FIELD}.positions", list(value.positions), "either positions or over")
    return StateOptions(over=value.over, positions=value.positions, format=form)
