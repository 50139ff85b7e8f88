"""The OpenAPI of ``/v1/embeddings`` and ``/encode``."""

from tessera.capabilities.embed.inputs import GENERATION_PROMPT, MESSAGES, TRUNCATE
from tessera.capabilities.embed.options import APPLIED, Encoding, Pooling
from tessera.capabilities.embed.routes import ON_ERROR
from tessera.http.adapters import FIELD as ADAPTER_FIELD
from tessera.http.adapters import MEANING, MODEL
from tessera.limits import MAX_INPUTS
from tessera.schema_parts import Schema, integer, obj, only, operation, or_null, ref, values, with_meanings

TAG = "embeddings"


def paths() -> Schema:
    """Both routes."""
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


def components(schemas: Schema, hidden_size: int | None, vocabulary: int | None, *, adapters: bool) -> Schema:
    """Their bodies, and what an answer says of how its vector was made.

    Args:
        schemas: of the capability's options.
        hidden_size: H; None leaves out what depends on it.
        vocabulary: how many token ids there are; likewise.
        adapters: whether the server may have some loaded.
    """
    adapter = _adapter_fields(named=adapters)
    token = integer(0, None if vocabulary is None else vocabulary - 1)
    text = {"type": "string", "minLength": 1}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_INPUTS}
    ids = {"type": "array", "items": token, "minItems": 1}
    several = {"type": "array", "items": ids, "minItems": 1, "maxItems": MAX_INPUTS}
    declared = schemas["TesseraEmbedOptions"]["properties"]
    options = {
        "encoding_format": {"enum": [*values(Encoding), None], "default": Encoding.FLOAT.value},
        "dimensions": or_null(integer(1, hidden_size)),
        "pooling": {"enum": [*values(Pooling), None], "default": Pooling.MEAN.value},
        "normalize": {"type": ["boolean", "null"], "default": False},
        "spans": declared["spans"],
    }
    options = with_meanings(options, {name: declared[name]["description"] for name in options})
    options |= {
        TRUNCATE: or_null({"anyOf": [{"const": -1}, integer(1, None)]})
        | {"description": "how many tokens at the end of each prompt count; -1: as many as the context has"},
        ON_ERROR: {"enum": ["null", None], "description": "a prompt that fails is null, and the others are answered"},
    }
    either = [only("input", MESSAGES), only(MESSAGES, "input", ON_ERROR)]
    message = obj({"role": text, "content": text}, ["role", "content"])
    openai = {
        "input": or_null({"anyOf": [text, texts, ids, several]})
        | {"description": "what to embed: texts, or token ids"},
        MESSAGES: or_null({"type": "array", "items": message, "minItems": 1})
        | {"description": "a chat in place of input, written by the model's chat template"},
        GENERATION_PROMPT: {
            "type": ["boolean", "null"],
            "default": False,
            "description": "whether the template begins the answer",
        },
        **adapter,
        "user": {"description": "taken and not looked at"},
        **options,
    }
    width = {"description": "checked against the model's"} if hidden_size is None else {"enum": [hidden_size, None]}
    encode = {
        "text": {"anyOf": [text, texts], "description": "what to embed"},
        "hidden_size": width,
        ADAPTER_FIELD: adapter[ADAPTER_FIELD],
        **options,
    }
    applied = {name: declared[name] for name in ("pooling", "over", "normalize")}
    applied |= {"dimensions": integer(1, hidden_size) | {"description": declared["dimensions"]["description"]}}
    return {
        "EmbeddingsRequest": obj(openai, []) | {"oneOf": either},
        "EncodeRequest": obj(encode, ["text"]),
        "TesseraEmbeddingOptions": obj(applied, ["pooling", "normalize"]),
    }


def _adapter_fields(*, named: bool) -> dict[str, Schema]:
    """What names an adapter; on a server that has none nothing may."""
    model = {"description": "name:adapter names an adapter (LoRA) that is loaded; any other name is not looked at"}
    if named:
        name = {"type": "string", "minLength": 1}
        return {MODEL: model, ADAPTER_FIELD: {**or_null(name), "description": MEANING}}
    return {MODEL: {**model, "not": {"type": "string", "pattern": r":.*\S"}}, ADAPTER_FIELD: {"type": "null"}}


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
