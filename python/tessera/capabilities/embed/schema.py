"""The OpenAPI of ``/v1/embeddings`` and ``/encode``."""

import msgspec

from tessera.capabilities.embed.bodies import EmbeddingsRequest, EncodeRequest
from tessera.capabilities.embed.options import APPLIED
from tessera.http.adapters import FIELD as ADAPTER_FIELD
from tessera.http.adapters import MEANING, MODEL
from tessera.limits import MAX_INPUTS
from tessera.schema_parts import Schema, integer, obj, only, operation, or_null, ref

TAG = "embeddings"


def paths() -> Schema:
    """The OpenAPI of ``/v1/embeddings`` and ``/encode``."""
    return {
        "/v1/embeddings": {
            "post": operation(
                "createEmbeddings", TAG, "Embeddings, as OpenAI has them", "EmbeddingsRequest", _embeddings()
            )
        },
        "/encode": {
            method: operation(
                f"encode{method.title()}", TAG, f"Embeddings of texts ({method})", "EncodeRequest", _encoded()
            )
            for method in ("post", "put")
        },
    }


def complete(schemas: Schema, hidden_size: int | None, vocabulary: int | None, *, adapters: bool) -> None:
    """Add what types do not say to the bodies' schemas (in place), and what an answer says of how its vector was made.

    Args:
        schemas: of the capability's options and bodies.
        hidden_size: H; None leaves out what depends on it.
        vocabulary: how many token ids there are; likewise.
        adapters: whether the server may have some loaded.
    """
    text = {"type": "string", "minLength": 1}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_INPUTS}
    ids = {"type": "array", "items": integer(0, None if vocabulary is None else vocabulary - 1), "minItems": 1}
    several = {"type": "array", "items": ids, "minItems": 1, "maxItems": MAX_INPUTS}
    declared = schemas["TesseraEmbedOptions"]["properties"]
    openai, encode = (_own_first(schemas[body.__name__], body) for body in (EmbeddingsRequest, EncodeRequest))
    openai["properties"]["input"] |= or_null({"anyOf": [text, texts, ids, several]})
    openai["oneOf"] = [only("input", "messages"), only("messages", "input", "on_error")]
    encode["properties"]["text"] |= {"anyOf": [text, texts]}
    if hidden_size is not None:
        encode["properties"]["hidden_size"] |= {"enum": [hidden_size, None]}
        for properties in (declared, openai["properties"], encode["properties"]):
            properties["dimensions"]["anyOf"][0]["maximum"] = hidden_size
    for properties in (openai["properties"], encode["properties"]):
        path = or_null(text) if adapters else {"type": "null"}
        properties[ADAPTER_FIELD] = path | {"description": MEANING}
    if not adapters:
        openai["properties"][MODEL] |= {"not": {"type": "string", "pattern": r":.*\S"}}
    applied = {name: declared[name] for name in ("pooling", "over", "normalize")}
    applied |= {"dimensions": integer(1, hidden_size) | {"description": declared["dimensions"]["description"]}}
    schemas["TesseraEmbeddingOptions"] = obj(applied, ["pooling", "normalize"])


def _own_first(schema: Schema, body: type[msgspec.Struct]) -> Schema:
    """A schema with the properties that the class adds before those of its base."""
    properties = schema["properties"]
    schema["properties"] = {name: properties[name] for name in dict.fromkeys([*body.__annotations__, *properties])}
    return schema


def _embeddings() -> Schema:
    vector = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}
    item = {
        "object": {"const": "embedding"},
        "index": integer(0, None),
        "embedding": or_null(vector),
    }
    applied = {APPLIED: ref("TesseraEmbeddingOptions")}
    failed = {"error": {"type": "object"}}
    place = {"prompt": integer(0, None), "span": {"type": "array", "items": integer(0, None)}}
    usage = {"prompt_tokens": integer(1, None), "total_tokens": integer(1, None)}
    properties = {
        "object": {"const": "list"},
        "data": {"type": "array", "items": obj(item | applied | failed | place, list(item))},
        "model": {"type": "string"},
        "usage": obj(usage, list(usage)),
    }
    return obj(properties, list(properties))


def _encoded() -> Schema:
    vector = or_null({"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]})
    errors = {"errors": {"type": "array", "items": {"type": ["object", "null"]}}}
    vectors = {"type": "array", "items": vector}
    return {
        "oneOf": [
            obj({"embedding": vector, **errors}, ["embedding"]),
            obj({"embeddings": or_null(vectors), **errors}, ["embeddings"]),
            obj({"embeddings": {"type": "array", "items": or_null(vectors)}, **errors}, ["embeddings"]),
        ]
    }
