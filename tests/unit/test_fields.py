"""What a declaration of fields allows, one kind of type at a time, and what is said of other values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from tessera.errors import BadRequest
from tessera.fields import read


class Color(StrEnum):
    """Of two."""

    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, frozen=True):
    """An object."""

    color: Color = Color.RED
    size: Annotated[int, Meta(ge=2, le=5)] | None = None


class Fields(msgspec.Struct, frozen=True):
    """One of each kind of type."""

    flag: bool | None = None
    count: Annotated[int, Meta(ge=1)] | None = None
    bounded: Annotated[int, Meta(ge=0, le=9)] = 0
    text: Annotated[str, Meta(min_length=1, max_length=3)] | None = None
    color: Color | None = None
    inner: Inner | None = None
    several: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    few: Annotated[tuple[bool, ...], Meta(max_length=2, extra={"allowed": "up to two flags"})] | None = None
    any: Annotated[Any, Meta(extra_json_schema={"type": "string"})] = None
    either: bool | Literal["last"] | Inner | None = None
    share: Annotated[float, Meta(ge=0, le=1)] | None = None
    factor: float | None = None
    some: Literal[-1] | Annotated[int, Meta(ge=1)] = 1
    filled: Annotated[
        Annotated[Inner, Meta(extra_json_schema={"minProperties": 1})] | None, Meta(extra={"allowed": "not {}"})
    ] = None
    each: bool | Inner | tuple[bool | Inner | None, ...] = False


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("flag", True, True),
        ("flag", False, False),
        ("count", 10**30, 10**30),
        ("bounded", 9, 9),
        ("text", "abc", "abc"),
        ("color", "blue", Color.BLUE),
        ("inner", {}, Inner()),
        ("inner", {"color": "blue", "size": None}, Inner(Color.BLUE)),
        ("inner", {"size": 2}, Inner(size=2)),
        ("several", [], ()),
        ("several", [0, 7], (0, 7)),
        ("few", [True, False], (True, False)),
        ("any", [{"x": 1}], [{"x": 1}]),
        ("any", False, False),
        ("either", "last", "last"),
        ("either", False, False),
        ("either", {"size": 5}, Inner(size=5)),
        ("several", [0] * 9 + [10**30], (*[0] * 9, 10**30)),
        ("share", 0.5, 0.5),
        ("share", 1, 1),
        ("factor", -1e308, -1e308),
        ("some", -1, -1),
        ("some", -1.0, -1),
        ("some", 7, 7),
        ("filled", {"size": None}, Inner()),
        ("each", [True, None, {}], (True, None, Inner())),
        ("each", {"color": "blue"}, Inner(Color.BLUE)),
    ],
)
def test_right(name: str, value: object, found: Any) -> None:
    """Read as what it is declared; other fields have their defaults, and what is not declared is not looked at."""
    own = read({name: value, "another": object()}, Fields)
    assert own == Fields(**{name: found})
    assert type(getattr(own, name)) is type(found)  # -1 and -1.0 are equal


def test_nothing_is_the_default() -> None:
    """Missing or null."""
    names = Fields.__struct_fields__
    assert read({}, Fields) == read(dict.fromkeys(names), Fields) == Fields()


@pytest.mark.parametrize(
    ("name", "value", "field", "allowed"),
    [
        ("flag", 1, "flag", "true | false"),
        ("flag", "true", "flag", "true | false"),
        ("count", 0, "count", "an integer, 1 or more"),
        ("count", 1.0, "count", "an integer, 1 or more"),
        ("count", True, "count", "an integer, 1 or more"),
        ("bounded", 10, "bounded", "an integer, 0 to 9"),
        ("bounded", "1", "bounded", "an integer, 0 to 9"),
        ("text", "", "text", "a text of 1 to 3 characters"),
        ("text", "abcd", "text", "a text of 1 to 3 characters"),
        ("text", 7, "text", "a text of 1 to 3 characters"),
        ("color", "green", "color", "red | blue"),
        ("color", 1, "color", "red | blue"),
        ("inner", "red", "inner", "an object with color, size"),
        ("inner", {"hue": 1}, "inner.hue", "no such key; the keys are color, size"),
        ("inner", {"color": None}, "inner.color", "red | blue"),
        ("inner", {"size": 6}, "inner.size", "an integer, 2 to 5"),
        ("inner", {"size": "2"}, "inner.size", "an integer, 2 to 5"),
        ("several", 3, "several", "a list of 0 or more values"),
        ("several", [0, -1], "several[1]", "an integer, 0 or more"),
        ("several", [True], "several[0]", "an integer, 0 or more"),
        ("few", [True] * 3, "few", "up to two flags"),
        ("few", "x", "few", "up to two flags"),
        ("few", [True, 0], "few[1]", "true | false"),
        ("either", 1, "either", 'true, false, "last", or an object with color, size'),
        ("either", "first", "either", 'true, false, "last", or an object with color, size'),
        ("either", {"size": 1}, "either.size", "an integer, 2 to 5"),
        ("several", [3, 2, -1, 4], "several[2]", "an integer, 0 or more"),
        ("several", [3, True], "several[1]", "an integer, 0 or more"),
        ("share", -0.1, "share", "a number, 0 to 1"),
        ("share", float("nan"), "share", "a number, 0 to 1"),
        ("share", True, "share", "a number, 0 to 1"),
        ("factor", float("inf"), "factor", "a finite number"),
        ("factor", 10**400, "factor", "a finite number"),
        ("some", 0, "some", "-1, or an integer, 1 or more"),
        ("some", True, "some", "-1, or an integer, 1 or more"),
        ("some", 1.0, "some", "-1, or an integer, 1 or more"),
        ("text", "\ud800", "text", "a text without halves of surrogate pairs"),
        ("filled", {}, "filled", "not {}"),
        ("filled", {"hue": 1}, "filled.hue", "no such key; the keys are color, size"),
        ("each", [0], "each[0]", "true, false, or an object with color, size"),
        ("each", [{}, {"hue": 1}], "each[1].hue", "no such key; the keys are color, size"),
        ("each", 5, "each", "true, false, an object with color, size, or a list of 0 or more values"),
    ],
)
def test_wrong(name: str, value: object, field: str, allowed: str) -> None:
    """The message names the field, and says what it may be."""
    with pytest.raises(BadRequest) as refused:
        read({name: value}, Fields)
    assert (refused.value.field, refused.value.allowed) == (field, allowed)


def test_where() -> None:
    """What stands before the names."""
    for given, field in (({"flag": 1}, "claims[2].flag"), ({"inner": {"size": 0}}, "claims[2].inner.size")):
        with pytest.raises(BadRequest) as refused:
            read(given, Fields, "claims[2].")
        assert refused.value.field == field
