"""Checks of values that clients send: each error names the field, the value and what is allowed.

A capability declares its fields as a `msgspec.Struct`. `read` checks a request against it; its OpenAPI is derived from
the same declaration (`tessera.http.schema`).
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as kinds

from tessera.errors import BadRequest

E = TypeVar("E", bound=Enum)
S = TypeVar("S", bound=msgspec.Struct)
_Fits = Callable[[Any], bool]
_Read = Callable[[str, Any], Any]
"""Reads a field's value, given its name."""
_LARGEST = sys.float_info.max


def read(given: Mapping[str, object], fields: type[S], where: str = "") -> S:
    """Check the top-level fields of a request.

    Args:
        given: values by name; a field that is missing or None has its default.
        fields: their declaration.
        where: what stands before their names in messages.

    Raises:
        BadRequest: a value is not allowed.
    """
    own = {name: value for name, value in given.items() if value is not None and name in fields.__struct_fields__}
    return _declared(fields)(where.removesuffix("."), own)  # type: ignore[no-any-return]


def choice(field: str, enum: type[E], value: object) -> E:
    """The member of an enumeration of texts that ``value`` names."""
    if isinstance(value, str) and value in [member.value for member in enum]:
        return enum(value)
    raise BadRequest(field, value, " | ".join(member.value for member in enum))


def boolean(field: str, value: object) -> bool:
    """A boolean, and no number."""
    if isinstance(value, bool):
        return value
    raise BadRequest(field, value, "true | false")


def integer(field: str, value: object, least: int, most: int | None) -> int:
    """An integer within bounds, and no boolean."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return value
    raise BadRequest(field, value, _bounded("an integer,", least, most))


def number(field: str, value: object, least: float, most: float, *, above: bool = False) -> float:
    """A number within bounds, and no boolean; ``above`` leaves out the least."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        inside = least < value <= most if above else least <= value <= most  # NaN is in neither
        if inside:
            return value
    raise BadRequest(field, value, f"a number, {'above ' if above else ''}{least:g} to {most:g}")


def text(field: str, value: object) -> str:
    """A text that UTF-8 can carry."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadRequest(field, value, "a text without halves of surrogate pairs") from None
        return value
    raise BadRequest(field, value, "a text")


def as_integer(value: object) -> object:
    """3 for 3.0, which is an integer in JSON Schema; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def known_keys(field: str, value: Mapping[str, object], keys: Sequence[str]) -> None:
    """Refuse a key that is not among ``keys``."""
    for key, own in value.items():
        if key not in keys:
            raise BadRequest(f"{field}.{key}", own, f"no such key; the keys are {', '.join(keys)}")


@cache
def _declared(struct: type[msgspec.Struct]) -> _Read:
    found = kinds.type_info(struct)
    if not isinstance(found, kinds.StructType):
        raise TypeError(f"{struct} is not a declaration of fields")
    return _object(found)


def _object(kind: kinds.StructType) -> _Read:
    fields = [(own.name, own.required, _reader(own.type)[1]) for own in kind.fields]

    def read_object(field: str, value: dict[str, Any]) -> Any:
        known_keys(field, value, kind.cls.__struct_fields__)
        prefix = f"{field}." if field else ""
        given = ((name, own) for name, required, own in fields if required or name in value)
        return kind.cls(**{name: own(f"{prefix}{name}", value.get(name)) for name, own in given})

    return read_object


def _reader(kind: kinds.Type) -> tuple[_Fits, _Read]:  # noqa: C901, PLR0911 - a case for each kind of type
    """Whether a value is of this kind, but for what an object or a list holds; and what reads it, or refuses it."""
    match kind:
        case kinds.Metadata(type=inner):
            fits, then = _reader(inner)
            if fewest := (kind.extra_json_schema or {}).get("minProperties", 0):
                return _checked(kind, lambda value: isinstance(value, dict) and len(value) >= fewest, then)
            return _checked(kind, fits, then) if "allowed" in (kind.extra or {}) else (fits, then)
        case kinds.UnionType(types=types):
            return _either_of([_reader(one) for one in types], _allowed(kind))
        case kinds.StructType():
            return _checked(kind, lambda value: isinstance(value, dict), _object(kind))
        case kinds.EnumType(cls=enum):
            members = {member.value: member for member in enum}
            return _checked(kind, lambda value: isinstance(value, str) and value in members, lambda _, v: members[v])
        case kinds.LiteralType(values=values):
            fits = lambda value: not isinstance(value, bool) and value in values  # noqa: E731
            return _checked(kind, fits, lambda _, value: values[values.index(value)])
        case kinds.VarTupleType(item_type=item):
            return _checked(kind, _sized(list, kind), _several(item))
        case kinds.StrType():
            return _checked(kind, _sized(str, kind), text)
        case kinds.IntType(ge=least, le=most):
            return _checked(kind, _between({int}, least or 0, math.inf if most is None else most))
        case kinds.FloatType(ge=least, le=most):
            return _checked(
                kind, _between({int, float}, -_LARGEST if least is None else least, _LARGEST if most is None else most)
            )
        case kinds.BoolType():
            return _checked(kind, lambda value: isinstance(value, bool))
        case kinds.NoneType():
            return _checked(kind, lambda value: value is None)
    return lambda _: True, lambda _, value: value


def _checked(kind: kinds.Type, fits: _Fits, then: _Read = lambda _, value: value) -> tuple[_Fits, _Read]:
    allowed = _allowed(kind)

    def read_value(field: str, value: Any) -> Any:
        if fits(value):
            return then(field, value)
        raise BadRequest(field, value, allowed)

    return fits, read_value


def _either_of(each: Sequence[tuple[_Fits, _Read]], allowed: str) -> tuple[_Fits, _Read]:
    def read_first(field: str, value: Any) -> Any:
        for fits, own in each:
            if fits(value):
                return own(field, value)
        raise BadRequest(field, value, allowed)

    return lambda value: any(fits(value) for fits, _ in each), read_first


def _several(item: kinds.Type) -> _Read:
    fits, own = _reader(item)

    def read_list(field: str, value: list[Any]) -> tuple[Any, ...]:
        if isinstance(item, kinds.IntType) and {*map(type, value)} == {int} and fits(min(value)) and fits(max(value)):
            return tuple(value)  # there may be many
        return tuple(own(f"{field}[{i}]", one) for i, one in enumerate(value))

    return read_list


def _between(types: set[type], least: float, most: float) -> _Fits:
    return lambda value: type(value) in types and least <= value <= most  # NaN is nowhere


def _sized(of: type[Sized], kind: kinds.StrType | kinds.VarTupleType) -> _Fits:
    least, most = kind.min_length or 0, math.inf if kind.max_length is None else kind.max_length
    return lambda value: isinstance(value, of) and least <= len(value) <= most


def _allowed(kind: kinds.Type) -> str:  # noqa: C901, PLR0911 - a case for each kind of type
    match kind:
        case kinds.BoolType():
            return "true | false"
        case kinds.IntType(ge=least, le=most):
            return _bounded("an integer,", least or 0, most)
        case kinds.FloatType(ge=None):
            return "a finite number"
        case kinds.FloatType(ge=least, le=most):
            return f"a number, {least:g} to {most:g}"
        case kinds.LiteralType(values=values):
            return " | ".join(map(json.dumps, values))
        case kinds.StrType(min_length=least, max_length=most):
            return _bounded("a text of", least or 0, most, " characters")
        case kinds.StructType(fields=fields):
            return f"an object with {', '.join(own.name for own in fields)}"
        case kinds.EnumType(cls=enum):
            return " | ".join(str(member.value) for member in enum)
        case kinds.Metadata(extra={"allowed": allowed}):
            return str(allowed)
        case kinds.Metadata(type=inner):
            return _allowed(inner)
        case kinds.VarTupleType(min_length=least, max_length=most):
            return _bounded("a list of", least or 0, most, " values")
        case kinds.UnionType(types=each):
            return _either([one for one in each if not isinstance(one, kinds.NoneType)])
    return "another value"


def _either(each: Sequence[kinds.Type]) -> str:
    if len(each) == 1:
        return _allowed(each[0])
    shown: list[str] = []
    for one in each:
        match one:
            case kinds.BoolType():
                shown[:0] = ["true", "false"]
            case _:
                shown.append(_allowed(one))
    return f"{', '.join(shown[:-1])}, or {shown[-1]}"


def _bounded(what: str, least: int, most: int | None, unit: str = "") -> str:
    return f"{what} {least} or more{unit}" if most is None else f"{what} {least} to {most}{unit}"
