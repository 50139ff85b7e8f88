"""The OpenAPI of what is ours: routes of our own, and our fields on SGLang's requests.

Made of the option schemas, so that it cannot say anything else than they do. ``docs/reference/openapi.json`` is this
without a model's limits; a server has it, with them, in its ``/openapi.json``.
"""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

from tessera import __version__
from tessera.embed.options import APPLIED, EmbedOptions, Encoding, Pooling
from tessera.http import schema_injection, schema_toploc
from tessera.http.adapters import FIELD as ADAPTER_FIELD
from tessera.http.adapters import MODEL
from tessera.http.schema_parts import ADAPTER, TEXT, Schema, integer, obj, or_null, ref, values
from tessera.http.vectors import Transport
from tessera.inject.matrices import BASE64_FIELD
from tessera.inject.options import FIELD as OVERRIDES_FIELD
from tessera.limits import MAX_INPUTS, MAX_POSITIONS
from tessera.rows.span import Over
from tessera.states.options import Format

STOCK_REQUESTS = {
    "GenerateReqInput": ("output_ids", BASE64_FIELD),
    "ChatCompletionRequest": ("output_ids",),
    "CompletionRequest": ("output_ids",),
}
"""SGLang's request bodies that take our fields, by their names in its own OpenAPI; and fields that not all take."""

_ERRORS = {"400": "a field is wrong", "413": "too large", "500": "the server failed", "503": "aborted; send it again"}


def document(hidden_size: int | None = None, vocabulary: int | None = None, *, adapters: bool = True) -> Schema:
    """The whole document.

    Args:
        hidden_size: H of the model; None leaves out what depends on it.
        vocabulary: how many token ids it has; likewise.
        adapters: whether the server may have some loaded (``--enable-lora``).
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
            "/v1/toploc/verify": {
                "post": _operation("Verify fingerprints", "ToplocVerifyRequest", schema_toploc.answer(), binary=False)
            },
        },
        "components": {"schemas": _components(hidden_size, vocabulary, _adapter_fields(named=adapters))},
    }


def merge(stock: Schema, ours: Schema, *, routes: bool) -> Schema:
    """SGLang's document with our fields on its requests, and our routes in place of its own of the same path.

    Args:
        stock: SGLang's; changed.
        ours: `document`.
        routes: whether the server has our routes: those that keep rows have.
    """
    stock["paths"] |= ours["paths"] if routes else {}
    schemas = stock.setdefault("components", {}).setdefault("schemas", {})
    schemas |= ours["components"]["schemas"]
    for name in STOCK_REQUESTS:
        if name in schemas:
            schemas[name].setdefault("properties", {}).update(request_fields(name))
    return stock


def request_fields(name: str) -> Schema:
    """Our fields at the top level of one of `STOCK_REQUESTS`."""
    own = {"output_ids": schema_toploc.output_ids(), BASE64_FIELD: schema_injection.matrices_field()}
    return {
        "return_embedding": ref("TesseraReturnEmbedding"),
        "return_hidden_states": ref("TesseraReturnHiddenStates"),
        "hidden_states_format": {"enum": [*values(Format), None], "default": Format.LIST.value},
        **schema_toploc.fields(),
        OVERRIDES_FIELD: schema_injection.overrides_field(),
        **{field: own[field] for field in STOCK_REQUESTS[name]},
    }


def _components(hidden_size: int | None, vocabulary: int | None, adapter: dict[str, Schema]) -> Schema:
    dimensions = integer(1, hidden_size)
    token = integer(0, None if vocabulary is None else vocabulary - 1)
    text = {"type": "string", "minLength": 1}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_INPUTS}
    ids = {"type": "array", "items": token, "minItems": 1}
    several = {"type": "array", "items": ids, "minItems": 1, "maxItems": MAX_INPUTS}
    options = {
        "encoding_format": {"enum": [*values(Encoding), None], "default": Encoding.FLOAT.value},
        "dimensions": or_null(dimensions),
        "pooling": {"enum": [*values(Pooling), None], "default": Pooling.MEAN.value},
        "normalize": {"type": ["boolean", "null"], "default": False},
    }
    openai = {
        "input": {"anyOf": [text, texts, ids, several]},
        **adapter,
        "user": {"description": "taken and not looked at"},
        **options,
    }
    width = {"description": "checked against the model's"} if hidden_size is None else {"enum": [hidden_size, None]}
    return {
        "EmbeddingsRequest": obj(openai, ["input"]),
        "EncodeRequest": obj(
            {
                "text": {"anyOf": [text, texts]},
                "hidden_size": width,
                ADAPTER_FIELD: adapter[ADAPTER_FIELD],
                **options,
            },
            ["text"],
        ),
        "TesseraReturnEmbedding": {"anyOf": [{"type": ["boolean", "null"]}, _embed_options(dimensions)]},
        "TesseraEmbeddingOptions": _applied(dimensions),
        "TesseraReturnHiddenStates": {"anyOf": [{"type": ["boolean", "null"]}, {"const": "last"}, *_state_options()]},
        "TesseraError": _error(),
        **schema_toploc.components(ids),
        **schema_injection.components(hidden_size),
    }


def _adapter_fields(*, named: bool) -> dict[str, Schema]:
    """What names an adapter; on a server that has none nothing may."""
    model = {"description": "name:adapter names an adapter (LoRA) that is loaded; any other name is not looked at"}
    if named:
        return {MODEL: model, ADAPTER_FIELD: ADAPTER}
    return {MODEL: {**model, "not": {**TEXT, "pattern": r":.*\S"}}, ADAPTER_FIELD: {"type": "null"}}


def _embed_options(dimensions: Schema) -> Schema:
    types = get_type_hints(EmbedOptions)
    properties: Schema = {}
    for field in fields(EmbedOptions):
        if field.name == "dimensions":
            own = or_null(dimensions)
        elif types[field.name] is bool:
            own = {"type": "boolean"}
        else:
            own = {"enum": values(types[field.name])}
        properties[field.name] = {**own, "default": field.default}
    return obj(properties, [])


def _applied(dimensions: Schema) -> Schema:
    """Of an answer: `EmbedOptions.applied`."""
    properties = {
        "pooling": {"enum": values(Pooling)},
        "over": {"enum": values(Over)},
        "normalize": {"type": "boolean"},
        "dimensions": dimensions,
    }
    return obj(properties, ["pooling", "over", "normalize"])


def _state_options() -> list[Schema]:
    positions = {"type": "array", "items": integer(0, None), "minItems": 1, "maxItems": MAX_POSITIONS}
    return [
        obj({"over": {"enum": values(Over), "default": Over.ALL.value}}, []),
        obj({"positions": positions}, ["positions"]),
    ]


def _embeddings() -> Schema:
    vector = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}
    item = {
        "object": {"const": "embedding"},
        "index": integer(0, None),
        "embedding": vector,
        APPLIED: ref("TesseraEmbeddingOptions"),
    }
    usage = {"prompt_tokens": integer(1, None), "total_tokens": integer(1, None)}
    properties = {
        "object": {"const": "list"},
        "data": {"type": "array", "items": obj(item, list(item))},
        "model": {"type": "string"},
        "usage": obj(usage, list(usage)),
    }
    return obj(properties, list(properties))


def _encoded() -> Schema:
    vector = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}
    return {
        "oneOf": [
            obj({"embedding": vector}, ["embedding"]),
            obj({"embeddings": {"type": "array", "items": vector}}, ["embeddings"]),
        ]
    }


def _error() -> Schema:
    properties = {
        "message": {"type": "string"},
        "type": {"enum": ["invalid_request_error", "server_error"]},
        "param": {"type": ["string", "null"]},
        "code": {"type": "string"},
    }
    return obj({"error": obj(properties, list(properties))}, ["error"])


def _operation(summary: str, request: str, answer: Schema, *, binary: bool = True) -> Schema:
    """Args: summary, name of the body's schema, schema of the answer, and whether it comes as bytes where asked for."""
    content: Schema = {"application/json": {"schema": answer}}
    for kind in (Transport.RAW, Transport.SAFETENSORS) if binary else ():
        content[kind.value] = {"schema": {"type": "string", "format": "binary"}}
    answers: Schema = {"200": {"description": "the answer", "content": content}}
    for status, why in _ERRORS.items():
        answers[status] = {"description": why, "content": {"application/json": {"schema": ref("TesseraError")}}}
    body = {"required": True, "content": {"application/json": {"schema": ref(request)}}}
    return {"summary": summary, "requestBody": body, "responses": answers}
