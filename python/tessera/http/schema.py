"""The OpenAPI of what is ours: routes of our own, and our fields on SGLang's requests.

Derived from the declarations of capabilities. ``docs/reference/openapi.json`` is this document without a model's
limits; a server has it, with them, in its ``/openapi.json``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera import __version__
from tessera.capabilities.registry import CAPABILITIES
from tessera.capability import Capability
from tessera.errors import ANSWERED
from tessera.schema_parts import SECURITY, SECURITY_SCHEME, Schema, errors, obj, ref

STOCK_REQUESTS = ("GenerateReqInput", "ChatCompletionRequest", "CompletionRequest")
"""SGLang's request bodies that take our fields, by their names in its own OpenAPI."""
INFORMING = ("/server_info", "/get_server_info")
"""SGLang's routes that say what is on."""
TAGS = [
    {"name": "embeddings", "description": "vectors of texts"},
    {"name": "fingerprints", "description": "verification of responses"},
]
STOCK_TAGS = [
    {"name": "generation", "description": "SGLang's routes that take our fields"},
    {"name": "server", "description": "what is installed and on"},
]
_PREFIX = "Tessera"


def document(hidden_size: int | None = None, vocabulary: int | None = None, *, adapters: bool = True) -> Schema:
    """The OpenAPI of our routes and fields, as JSON values.

    Args:
        hidden_size: H of the model; None leaves out what depends on it.
        vocabulary: how many token ids it has; likewise.
        adapters: whether the server may have some loaded (``--enable-lora``).
    """
    schemas: Schema = {"TesseraError": _error()}
    paths: Schema = {}
    for capability in CAPABILITIES:
        _, own = _declared(capability, capability.bodies)
        schemas |= own
        capability.complete_schema(schemas, hidden_size, vocabulary, adapters=adapters)
        paths |= capability.paths()
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tessera on SGLang", "version": __version__},
        "tags": TAGS,
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {SECURITY_SCHEME: {"type": "http", "scheme": "bearer"}}},
    }


def merge(stock: Schema, ours: Schema, *, generating: Collection[str], routes: bool) -> Schema:
    """SGLang's document with our fields on its requests, and our routes instead of its own of the same path.

    Args:
        stock: SGLang's; changed.
        ours: `document`.
        generating: SGLang's routes that take our fields, and answer with our errors, too.
        routes: whether the server has our routes: those that keep rows have.
    """
    _name_operations(stock["paths"])
    stock["paths"] |= ours["paths"] if routes else {}
    stock.setdefault("tags", []).extend([*STOCK_TAGS, *(TAGS if routes else [])])
    schemas = stock.setdefault("components", {}).setdefault("schemas", {})
    schemas |= ours["components"]["schemas"]
    stock["components"].setdefault("securitySchemes", {}).update(ours["components"]["securitySchemes"])
    for path in generating:
        for operation in stock["paths"].get(path, {}).values():
            operation["responses"] |= errors(stock=True)
            operation.setdefault("security", SECURITY)
            operation["tags"] = ["generation"]
    for path in INFORMING:
        stock["paths"][path]["get"]["tags"] = ["server"]
    for name in STOCK_REQUESTS:
        if name in schemas:
            schemas[name].setdefault("properties", {}).update(request_fields(name))
    return stock


def _name_operations(paths: Schema) -> None:
    """Name each operation by its own method: FastAPI names all of a route by one of them, which differs by start."""
    for methods in paths.values():
        for method, operation in methods.items():
            operation["operationId"] = f"{operation['operationId'].rpartition('_')[0]}_{method}"


def request_fields(name: str) -> Schema:
    """Our fields at the top level of one of `STOCK_REQUESTS`."""
    found: Schema = {}
    for capability in CAPABILITIES:
        properties, _ = _declared(capability)
        for field, _, extra in capability.declared():
            if not (extra.get("stock") or (extra.get("generate") and name != STOCK_REQUESTS[0])):
                found[field] = properties[field]
    return found


def property_names() -> frozenset[str]:
    """The names of our fields, and of all fields of the objects that they may be."""
    return frozenset(name for capability in CAPABILITIES for part in _declared(capability) for name in _names(part))


def _declared(capability: Capability[Any, Any], bodies: Sequence[type[msgspec.Struct]] = ()) -> tuple[Schema, Schema]:
    """The properties of its fields; and the components that they and ``bodies`` refer to, with these, by name."""
    _, found = msgspec.json.schema_components([capability.fields, *bodies], ref_template="{name}")
    own = {body.__name__ for body in bodies}
    full = {name: name if name in own else f"{_PREFIX}{name}" for name in found}
    shown = {name: {"enum": one["enum"]} if "enum" in one else ref(full[name]) for name, one in found.items()}
    properties: Schema = _shown(found.pop(capability.fields.__name__), shown)["properties"]
    return properties, {full[name]: _shown(one, shown) for name, one in found.items() if "enum" not in one}


def _shown(schema: Any, names: Mapping[str, Schema]) -> Any:
    """A schema with enumerations replaced by their values, and references to the components of our document."""
    if isinstance(schema, list):
        return [_shown(own, names) for own in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("$ref") in names:
        return names[schema["$ref"]] | {key: own for key, own in schema.items() if key != "$ref"}
    return {key: _shown(own, names) for key, own in schema.items()}


def _names(part: Any) -> Iterator[str]:
    for name, schema in part.items():
        if name.startswith(_PREFIX):
            yield from schema.get("properties", ())
        else:
            yield name


def _error() -> Schema:
    properties = {
        "message": {"type": "string"},
        "type": {"enum": ["invalid_request_error", "server_error"]},
        "param": {"type": ["string", "null"]},
        "code": {"enum": sorted(ANSWERED)},
    }
    error = {**obj(properties, list(properties)), "description": "what is wrong, and what to do"}
    return obj({"error": error}, ["error"])
