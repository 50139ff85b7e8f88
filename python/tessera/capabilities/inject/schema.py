"""The OpenAPI of injected vectors."""

from tessera.capabilities.inject.options import NORM_MATCHED, Mode
from tessera.capabilities.inject.vectors import Dtype
from tessera.limits import MAX_OVERRIDES, MAX_TOKEN_CHARACTERS
from tessera.schema_parts import Schema, integer, obj, or_null, ref, values

_ON = "only on a server started with --enable-injection"


def overrides_field() -> Schema:
    """``input_embed_overrides``: for one prompt, or a list with what each prompt has."""
    one = ref("TesseraOverride")
    several = {"type": "array", "items": one, "maxItems": MAX_OVERRIDES}
    each = {"anyOf": [one, several, {"type": "null"}]}
    return {
        "anyOf": [one, {"type": "array", "items": each, "minItems": 1, "maxItems": MAX_OVERRIDES}, {"type": "null"}],
        "description": _ON,
    }


def matrices_field() -> Schema:
    """``input_embeds_b64``: one matrix, or one for each prompt."""
    one = ref("TesseraMatrix")
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}, {"type": "null"}], "description": _ON}


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
    places = [{"required": ["positions"]}, {"required": ["token"]}]
    matrix = {"data": base64, "shape": {**shape, "prefixItems": [integer(1, None), width]}, "dtype": dtype}
    return {
        "TesseraOverride": {**obj(override, ["embeds"]), "anyOf": places},
        "TesseraMatrix": obj(matrix, list(matrix)),
    }
