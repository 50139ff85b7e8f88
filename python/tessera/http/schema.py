"""The OpenAPI of what is ours: two routes of our own, and our fields on SGLang's requests.

Made of the option schemas, so that it cannot say anything else than they do. ``docs/openapi.json`` is this document
without a model's limits; a server has it, with them, in its ``/openapi.json``.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

from tessera import __version__
from tessera.embed.options import EmbedOptions, Encoding, Pooling
from tessera.fingerprint import admission
from tessera.fingerprint import options as toploc
from tessera.http.vectors import Transport
from tessera.limits import MAX_INPUTS, MAX_NONCE_CHARACTERS, MAX_POSITIONS
from tessera.rows.span import Over
from tessera.states.options import Format

Schema = dict[str, Any]

STOCK_REQUESTS = ("GenerateReqInput", "ChatCompletionRequest", "CompletionRequest")
"""SGLang's request bodies that take our fields, by their names in its own OpenAPI."""

_ERRORS = {"400": "a field is wrong", "413": "too large", "500": "the server failed", "503": "aborted; send it again"}


def document(hidden_size: int | None = None, vocabulary: int | None = None) -> Schema:
    """The whole document.

    Args:
        hidden_size: H of the model; None leaves out what depends on it.
        vocabulary: how many token ids it has; likewise.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tessera on SGLang", "version": __version__},
        "paths": {
            "/v1/embeddings": {
                "post": _operation("Embeddings, as OpenAI has them", "EmbeddingsRequest", _embeddings())
            },
            "/encode": {
                method: _operation(f"Mean embeddings of texts ({method})", "EncodeRequest", _encoded())
                for method in ("post", "put")
            },
        },
        "components": {"schemas": _components(hidden_size, vocabulary)},
    }


def merge(stock: Schema, ours: Schema) -> Schema:
    """SGLang's document with our routes in place of its own of the same path, and our fields on its requests."""
    stock["paths"] |= ours["paths"]
    schemas = stock.setdefault("components", {}).setdefault("schemas", {})
    schemas |= ours["components"]["schemas"]
    for name in STOCK_REQUESTS:
        if name in schemas:
            schemas[name].setdefault("properties", {}).update(request_fields())
    return stock


def request_fields() -> Schema:
    """Our fields at the top level of SGLang's requests."""
    return {
        "return_embedding": _ref("TesseraReturnEmbedding"),
        "return_hidden_states": _ref("TesseraReturnHiddenStates"),
        "hidden_states_format": {"enum": [*_values(Format), None], "default": Format.LIST.value},
        **_toploc_fields(),
    }


def _toploc_fields() -> Schema:
    text = {"type": "string"}
    switches = (name for name in admission.Fields._fields if name.startswith("return_"))
    return {
        **{name: {"type": ["boolean", "null"]} for name in switches},
        toploc.CLAIM_FIELD: {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}, {"type": "null"}]},
        toploc.NONCE_FIELD: _or_null({**text, "minLength": 1, "maxLength": MAX_NONCE_CHARACTERS}),
    }


def _components(hidden_size: int | None, vocabulary: int | None) -> Schema:
    dimensions = _integer(1, hidden_size)
    token = _integer(0, None if vocabulary is None else vocabulary - 1)
    text = {"type": "string", "minLength": 1}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_INPUTS}
    ids = {"type": "array", "items": token, "minItems": 1}
    several = {"type": "array", "items": ids, "minItems": 1, "maxItems": MAX_INPUTS}
    openai = {
        "input": {"anyOf": [text, texts, ids, several]},
        "model": {"description": "taken and not looked at"},
        "user": {"description": "taken and not looked at"},
        "encoding_format": {"enum": [*_values(Encoding), None], "default": Encoding.FLOAT.value},
        "dimensions": _or_null(dimensions),
        "pooling": {"enum": [*_values(Pooling), None], "default": Pooling.MEAN.value},
        "normalize": {"type": ["boolean", "null"], "default": False},
    }
    width = {"description": "checked against the model's"} if hidden_size is None else {"enum": [hidden_size, None]}
    return {
        "EmbeddingsRequest": _object(openai, ["input"]),
        "EncodeRequest": _object({"text": {"anyOf": [text, texts]}, "hidden_size": width}, ["text"]),
        "TesseraReturnEmbedding": {"anyOf": [{"type": ["boolean", "null"]}, _embed_options(dimensions)]},
        "TesseraReturnHiddenStates": {"anyOf": [{"type": ["boolean", "null"]}, {"const": "last"}, *_state_options()]},
        "TesseraError": _error(),
    }


def _embed_options(dimensions: Schema) -> Schema:
    types = get_type_hints(EmbedOptions)
    properties: Schema = {}
    for field in fields(EmbedOptions):
        if field.name == "dimensions":
            own = _or_null(dimensions)
        elif types[field.name] is bool:
            own = {"type": "boolean"}
        else:
            own = {"enum": _values(types[field.name])}
        properties[field.name] = {**own, "default": field.default}
    return _object(properties, [])


def _state_options() -> list[Schema]:
    positions = {"type": "array", "items": _integer(0, None), "minItems": 1, "maxItems": MAX_POSITIONS}
    return [
        _object({"over": {"enum": _values(Over), "default": Over.ALL.value}}, []),
        _object({"positions": positions}, ["positions"]),
    ]


def _embeddings() -> Schema:
    vector = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}
    item = {"object": {"const": "embedding"}, "index": _integer(0, None), "embedding": vector}
    usage = {"prompt_tokens": _integer(1, None), "total_tokens": _integer(1, None)}
    properties = {
        "object": {"const": "list"},
        "data": {"type": "array", "items": _object(item, list(item))},
        "model": {"type": "string"},
        "usage": _object(usage, list(usage)),
    }
    return _object(properties, list(properties))


def _encoded() -> Schema:
    vector = {"type": "array", "items": {"type": "number"}}
    return {
        "oneOf": [
            _object({"embedding": vector}, ["embedding"]),
            _object({"embeddings": {"type": "array", "items": vector}}, ["embeddings"]),
        ]
    }


def _error() -> Schema:
    properties = {
        "message": {"type": "string"},
        "type": {"enum": ["invalid_request_error", "server_error"]},
        "param": {"type": ["string", "null"]},
        "code": {"type": "string"},
    }
    return _object({"error": _object(properties, list(properties))}, ["error"])


def _operation(summary: str, request: str, answer: Schema) -> Schema:
    binary = {
        kind.value: {"schema": {"type": "string", "format": "binary"}}
        for kind in (Transport.RAW, Transport.SAFETENSORS)
    }
    answers: Schema = {
        "200": {"description": "the vectors", "content": {"application/json": {"schema": answer}, **binary}}
    }
    for status, why in _ERRORS.items():
        answers[status] = {"description": why, "content": {"application/json": {"schema": _ref("TesseraError")}}}
    body = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    return {"summary": summary, "requestBody": body, "responses": answers}


def _object(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _integer(least: int, most: int | None) -> Schema:
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _values(enum: type[Any]) -> list[str]:
    return [member.value for member in enum]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
