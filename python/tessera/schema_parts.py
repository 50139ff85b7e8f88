"""What the OpenAPI is put together from."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}


def obj(properties: Schema, required: list[str]) -> Schema:
    """An object with these keys and no other."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def with_meanings(properties: Schema, meanings: Mapping[str, str]) -> Schema:
    """The same properties, with a description of each that has none and is among ``meanings``."""
    return {
        name: {"description": meanings[name], **own} if name in meanings else own for name, own in properties.items()
    }


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


ERRORS = {"400": "a field is wrong", "413": "too large", "500": "the server failed", "503": "aborted; send it again"}


def operation(summary: str, request: str, answer: Schema, *, binary: bool = True) -> Schema:
    """Args: summary, name of the body's schema, schema of the answer, and whether it comes as bytes where asked for."""
    content: Schema = {"application/json": {"schema": answer}}
    for kind in ("application/octet-stream", "application/vnd.safetensors") if binary else ():
        content[kind] = {"schema": {"type": "string", "format": "binary"}}
    answers: Schema = {"200": {"description": "the answer", "content": content}}
    for status, why in ERRORS.items():
        answers[status] = {"description": why, "content": {"application/json": {"schema": ref("TesseraError")}}}
    body = {"required": True, "content": {"application/json": {"schema": ref(request)}}}
    return {"summary": summary, "requestBody": body, "responses": answers}
