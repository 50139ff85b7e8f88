"""What the OpenAPI is put together from."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}


def obj(properties: Schema, required: list[str]) -> Schema:
    """An object with these keys and no other."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def integer(least: int, most: int | None) -> Schema:
    """An integer in this range; None is no end."""
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def or_null(schema: Schema) -> Schema:
    """Or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def values(enum: type[Any]) -> list[str]:
    """Of an enumeration."""
    return [member.value for member in enum]


ADAPTER: Schema = {
    **or_null({**TEXT, "minLength": 1}),
    "description": "name of an adapter (LoRA) that the server has loaded",
}


def ref(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}
