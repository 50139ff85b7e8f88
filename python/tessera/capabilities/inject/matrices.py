"""``input_embeds`` and ``input_embeds_b64``: all embeddings of a prompt, in place of its text."""

import torch

from tessera.capabilities.inject.model import Model
from tessera.capabilities.inject.options import Override
from tessera.capabilities.inject.vectors import check_values, decode
from tessera.errors import BadRequest
from tessera.fields import known_keys

LIST_FIELD = "input_embeds"
BASE64_FIELD = "input_embeds_b64"
FILLER_ID = 1
"""What stands for a token where there are none, as SGLang has it: logprobs of such a prompt mean nothing."""

KEYS = ["data", "shape", "dtype"]
_DEEP = 3


def from_lists(value: object, model: Model) -> list[Override] | Override:
    """``input_embeds``: one matrix, or one for each prompt.

    Raises:
        BadRequest: a matrix that the model cannot take.
    """
    if not isinstance(value, list) or not value:
        raise BadRequest(LIST_FIELD, value, "a list of rows, or a list of such lists")
    if _depth(value) < _DEEP:
        return _from_list(LIST_FIELD, value, model)
    return [_from_list(f"{LIST_FIELD}[{i}]", matrix, model) for i, matrix in enumerate(value)]


def from_base64(value: object, model: Model) -> list[Override] | Override:
    """``input_embeds_b64``: one object with data, shape, dtype, or one for each prompt.

    Raises:
        BadRequest: a matrix that the model cannot take.
    """
    if not isinstance(value, list):
        return _from_base64(BASE64_FIELD, value, model)
    if not value:
        raise BadRequest(BASE64_FIELD, value, "an object, or a list with one for each prompt")
    return [_from_base64(f"{BASE64_FIELD}[{i}]", matrix, model) for i, matrix in enumerate(value)]


def _from_list(field: str, value: object, model: Model) -> Override:
    if not isinstance(value, list):
        raise BadRequest(field, value, "a list of rows")
    return _whole(field, decode(field, value, None, None, model.bounds(projected=False)), model)


def _from_base64(field: str, value: object, model: Model) -> Override:
    if not isinstance(value, dict):
        raise BadRequest(field, value, f"an object with {', '.join(KEYS)}")
    known_keys(field, value, KEYS)
    if not isinstance(value.get("data"), str):
        raise BadRequest(f"{field}.data", value.get("data"), "base64 of little-endian numbers")
    vectors = decode(
        f"{field}.data", value["data"], value.get("shape"), value.get("dtype"), model.bounds(projected=False)
    )
    return _whole(f"{field}.data", vectors, model)


def _whole(field: str, vectors: torch.Tensor, model: Model) -> Override:
    check_values(field, vectors, model.max_magnitude, model.dtype)
    return Override(field, vectors.to(model.dtype), positions=tuple(range(len(vectors))))


def _depth(value: object) -> int:
    depth = 0
    while isinstance(value, list) and depth < _DEEP:
        depth += 1
        value = value[0] if value else None
    return depth
