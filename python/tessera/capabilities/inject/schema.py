"""The OpenAPI of injected vectors."""

from tessera.capabilities.inject.options import NORM_MATCHED, Mode
from tessera.capabilities.inject.vectors import Dtype
from tessera.limits import MAX_OVERRIDES, MAX_TOKEN_CHARACTERS
from tessera.schema_parts import Schema, integer, obj, or_null, ref, values, with_meanings

_ON = "only on a server started with --enable-injection"
_MEANINGS = {
    "positions": "token position of each vector, from 0; either positions or token",
    "token": "the vectors go where this token stands, by its id or its text; as often as there are vectors",
    "embeds": "the vectors",
    "shape": "[vectors, width]; required beside base64",
    "dtype": "of the numbers in base64",
    "mode": "put in place of the token's embedding, or added to it",
    "scale": "a factor, or norm-matched: each vector gets the length of the embedding that it meets",
    "expect_neighbours": "the tokens that must stand left and right of each position",
    "projection": "name of a projection on the server, for vectors of another width than the model's",
}


def overrides_field() -> Schema:
    """``input_embed_overrides``: for one prompt, or a list with what each prompt has."""
    one = ref("TesseraOverride")
    several = {"type": "array", "items": one, "maxItems": MAX_OVERRIDES}
    each = {"anyOf": [one, several, {"type": "null"}]}
    return {
        "anyOf": [one, {"type": "array", "items": each, "minItems": 1, "maxItems": MAX_OVERRIDES}, {"type": "null"}],
        "description": f"put vectors into the embeddings of the prompt; {_ON}",
    }


def matrices_field() -> Schema:
    """``input_embeds_b64``: one matrix, or one for each prompt."""
    one = ref("TesseraMatrix")
    several = {"type": "array", "items": one, "minItems": 1}
    return {"anyOf": [one, several, {"type": "null"}], "description": f"all embeddings of a prompt, as base64; {_ON}"}


def components(hidden_size: int | None) -> Schema:
    """The schemas that the fields refer to."""
    rows = {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 1}, "minItems": 1}
    shape = {"type": "array", "items": integer(1, None), "minItems": 2, "maxItems": 2}
    width = integer(1, None) if hidden_size is None else {"const": hidden_size}
    dtype = {"enum": values(Dtype)}
    base64 = {"type": "string", "description": "base64 of little-endian numbers, row by row"}
    token = {"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 1, "maxLength": MAX_TOKEN_CHARACTERS}]}
    neighbours = {**obj({"left": or_null(token), "right": or_null(token)}, []), "minProperties": 1}
    override = {
        "positions": or_null({"type": "array", "items": integer(0, None), "minItems": 1}),
        "token": or_null(token),
        "embeds": {"anyOf": [base64, rows]},
        "shape": or_null(shape),
        "dtype": or_null(dtype),
        "mode": {"enum": values(Mode), "default": Mode.REPLACE.value},
        "scale": {"anyOf": [{"type": "number"}, {"const": NORM_MATCHED}, {"type": "null"}]},
        "expect_neighbours": or_null(neighbours),
        "projection": or_null({"type": "string"}),
    }
    override = with_meanings(override, _MEANINGS)
    places = [{"required": ["positions"]}, {"required": ["token"]}]
    matrix = {
        "data": base64,
        "shape": {**shape, "prefixItems": [integer(1, None), width], "description": "[tokens, width]"},
        "dtype": {**dtype, "description": _MEANINGS["dtype"]},
    }
    return {
        "TesseraOverride": {**obj(override, ["embeds"]), "anyOf": places},
        "TesseraMatrix": obj(matrix, list(matrix)),
    }
