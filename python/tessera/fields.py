"""Checks of values that clients send: each error names the field, the value and what is allowed.

A capability declares its fields as a `msgspec.Struct`. `read` checks a request against it; its OpenAPI is derived from
the same declaration (`tessera.http.schema`).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as kinds

from tessera.errors import BadRequest

E = TypeVar("E", bound=Enum)
S = TypeVar("S", bound=msgspec.Struct)


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
    return _struct(where, own, _declared(fields))  # type: ignore[no-any-return]


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


def whole(value: object) -> object:
    """3 for 3.0, which is an integer in JSON Schema; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def known_keys(field: str, value: Mapping[str, object], keys: Sequence[str]) -> None:
    """Refuse a key that is not among ``keys``."""
    for key, own in value.items():
        if key not in keys:
            raise BadRequest(f"{field}.{key}", own, f"no such key; the keys are {', '.join(keys)}")


@cache
def _declared(struct: type[msgspec.Struct]) -> kinds.StructType:
    found = kinds.type_info(struct)
    if not isinstance(found, kinds.StructType):
        raise TypeError(f"{struct} is not a declaration of fields")
    return found


def _struct(prefix: str, value: Mapping[str, object], kind: kinds.StructType) -> Any:
    known_keys(prefix.removesuffix("."), value, kind.cls.__struct_fields__)
    found = {
        own.name: _read(f"{prefix}{own.name}", value.get(own.name), own.type)
        for own in kind.fields
        if own.name in value or own.required
    }
    return kind.cls(**found)


def _read(field: str, value: object, kind: kinds.Type) -> Any:  # noqa: C901, PLR0911, PLR0912 - a case for each kind of type
    match kind:
        case kinds.AnyType():
            return value
        case kinds.Metadata(type=inner, extra={"allowed": allowed}):
            if _is(value, inner):
                return _read(field, value, inner)
            raise BadRequest(field, value, str(allowed))
        case kinds.Metadata(type=inner):
            return _read(field, value, inner)
        case kinds.UnionType(types=each):
            for one in each:
                if _is(value, one):
                    return _read(field, value, one)
        case kinds.StructType() if isinstance(value, dict):
            return _struct(f"{field}.", value, kind)
        case kinds.EnumType(cls=enum):
            return choice(field, enum, value)
        case kinds.LiteralType(values=values) if _is(value, kind):
            return values[values.index(value)]
        case kinds.VarTupleType(item_type=item) if isinstance(value, list) and _is(value, kind):
            if isinstance(item, kinds.IntType) and _are(value, item):
                return tuple(value)
            return tuple(_read(f"{field}[{i}]", own, item) for i, own in enumerate(value))
        case kinds.StrType() if isinstance(value, str) and _is(value, kind):
            return text(field, value)
        case _ if _is(value, kind):
            return value
    raise BadRequest(field, value, _allowed(kind))


def _are(values: list[Any], kind: kinds.IntType) -> bool:
    """Whether all are such integers, in few passes of C: there may be many."""
    return {*map(type, values)} == {int} and _is(min(values), kind) and _is(max(values), kind)


def _is(value: object, kind: kinds.Type) -> bool:  # noqa: C901, PLR0911 - a case for each kind of type
    """Whether it is the kind of JSON value that is declared; whether an object's or a list's own values are is open."""
    match kind:
        case kinds.Metadata(extra_json_schema={"minProperties": least}):
            return isinstance(value, dict) and len(value) >= least
        case kinds.Metadata(type=inner):
            return _is(value, inner)
        case kinds.UnionType(types=each):
            return any(_is(value, one) for one in each)
        case kinds.NoneType():
            return value is None
        case kinds.BoolType():
            return isinstance(value, bool)
        case kinds.IntType(ge=least, le=most):
            return type(value) is int and (least or 0) <= value <= (value if most is None else most)
        case kinds.FloatType(ge=least, le=most):
            finite = type(value) in {int, float} and abs(value) <= sys.float_info.max  # type: ignore[arg-type]
            return finite and (least is None or least <= value) and (most is None or value <= most)  # type: ignore[operator]
        case kinds.LiteralType(values=values):
            return not isinstance(value, bool) and value in values
        case kinds.StrType(min_length=least, max_length=most) | kinds.VarTupleType(min_length=least, max_length=most):
            of_kind = isinstance(value, str if isinstance(kind, kinds.StrType) else list)
            return of_kind and (least or 0) <= len(value) <= (len(value) if most is None else most)  # type: ignore[arg-type]
        case kinds.EnumType():
            return isinstance(value, str)
        case kinds.StructType():
            return isinstance(value, dict)
    return isinstance(kind, kinds.AnyType)


def _allowed(kind: kinds.Type) -> str:  # noqa: C901, PLR0911 - a case for each kind of type
    match kind:
        case kinds.BoolType():
            return "true | false"
        case kinds.IntType(ge=least, le=most):
            return _bounded("an integer,", least or 0, most)
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
