"""Checks of single values, shared by every schema: each names the field, the value and what is allowed."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, TypeVar

from tessera.errors import BadRequest

E = TypeVar("E", bound=StrEnum)


def choice(field: str, enum: type[E], value: object) -> E:
    """The member of ``enum`` that ``value`` names."""
    if isinstance(value, str) and value in list(enum):
        return enum(value)
    raise BadRequest(field, value, " | ".join(enum))


def boolean(field: str, value: object) -> bool:
    """A boolean, and no number."""
    if isinstance(value, bool):
        return value
    raise BadRequest(field, value, "true | false")


def flag(field: str, value: object) -> bool:
    """`boolean`, where nothing is false."""
    return False if value is None else boolean(field, value)


def integer(field: str, value: object, least: int, most: int | None) -> int:
    """An integer within bounds, and no boolean."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return value
    bounds = f"{least} or more" if most is None else f"{least} to {most}"
    raise BadRequest(field, value, f"an integer, {bounds}")


def whole(value: object) -> object:
    """3 for 3.0, which is an integer in JSON Schema; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def known_keys(field: str, value: dict[str, object], keys: list[str]) -> None:
    """Refuse a key that is not among ``keys``."""
    for key, own in value.items():
        if key not in keys:
            raise BadRequest(f"{field}.{key}", own, f"no such key; the keys are {', '.join(keys)}")


def json_object(text: object) -> dict[str, Any] | None:
    """The object that a JSON text holds; None for anything else, also for what is no text."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
