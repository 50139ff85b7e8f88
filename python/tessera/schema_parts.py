"""What the OpenAPI is put together from."""

from typing import Any

from tessera.errors import ANSWERED

Schema = dict[str, Any]

SECURITY_SCHEME = "ApiKey"
SECURITY: list[Schema] = [{}, {SECURITY_SCHEME: []}]
"""A server without ``--api-key`` asks for none."""
TEXT: Schema = {"type": "string"}


def obj(properties: Schema, required: list[str]) -> Schema:
    """An object with these keys and no other."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def only(field: str, *others: str) -> Schema:
    """An object with a field, and none of the others."""
    given: Schema = {field: {"type": ["array", "string"]}}
    return {"required": [field], "properties": given | {name: {"type": "null"} for name in others}}


def integer(least: int, most: int | None) -> Schema:
    """An integer in this range; None is no end."""
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def or_null(schema: Schema) -> Schema:
    """A schema that also takes null, as a field does that may be left out."""
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def errors(*, stock: bool = False) -> Schema:
    """The answers with one of our errors, by status, with the codes of each.

    Args:
        stock: whether SGLang answers the route, and may give an error body of its own.
    """
    found: Schema = {}
    for status in sorted(set(ANSWERED.values())):
        codes = ", ".join(code for code, own in ANSWERED.items() if own == status)
        schema = {"anyOf": [ref("TesseraError"), {"type": "object"}]} if stock else ref("TesseraError")
        what = f"{codes}; or an error of SGLang's" if stock else codes
        found[str(status)] = {"description": what, "content": {"application/json": {"schema": schema}}}
    return found


def operation(identity: str, tag: str, summary: str, request: str, answer: Schema, *, binary: bool = True) -> Schema:
    """An operation with a JSON body.

    Args:
        identity: its ``operationId``.
        tag: its group.
        summary: what it does.
        request: name of the body's schema.
        answer: schema of the answer.
        binary: whether it comes as bytes where asked for.
    """
    content: Schema = {"application/json": {"schema": answer}}
    for kind in ("application/octet-stream", "application/vnd.safetensors") if binary else ():
        content[kind] = {"schema": {"type": "string", "format": "binary"}}
    answers: Schema = {"200": {"description": "the answer", "content": content}}
    answers |= {"401": {"description": "the API key is missing or wrong, where the server has one"}} | errors()
    body = {"required": True, "content": {"application/json": {"schema": ref(request)}}}
    named = {"operationId": identity, "tags": [tag], "summary": summary}
    return {**named, "security": SECURITY, "requestBody": body, "responses": answers}
