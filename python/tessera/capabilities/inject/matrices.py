"""``input_embeds`` and ``input_embeds_b64``: all embeddings of a prompt, in place of its text."""

import torch

from tessera.capabilities.inject.decoded import Decoded
from tessera.capabilities.inject.model import Model
from tessera.capabilities.inject.options import InjectFields, Matrix
from tessera.capabilities.inject.vectors import check_values, decode
from tessera.errors import BadRequest
from tessera.fields import read

LIST_FIELD = "input_embeds"
BASE64_FIELD = "input_embeds_b64"
FILLER_ID = 1
"""What stands for a token where there are none, as SGLang has it: logprobs of such a prompt mean nothing."""

_DEEP = 3


def from_lists(value: object, model: Model) -> list[Decoded] | Decoded:
    """``input_embeds``: one matrix, or one for each prompt.

    Raises:
        BadRequest: a matrix that the model cannot take.
    """
    if not isinstance(value, list) or not value:
        raise BadRequest(LIST_FIELD, value, "a list of rows, or a list of such lists")
    if _depth(value) < _DEEP:
        return _from_list(LIST_FIELD, value, model)
    return [_from_list(f"{LIST_FIELD}[{i}]", matrix, model) for i, matrix in enumerate(value)]


def from_base64(value: object, model: Model) -> list[Decoded] | Decoded:
    """``input_embeds_b64``: one object with data, shape, dtype, or one for each prompt.

    Raises:
        BadRequest: a matrix that the model cannot take.
    """
    given = read({BASE64_FIELD: value}, InjectFields).input_embeds_b64
    if isinstance(given, Matrix):
        return _from_base64(BASE64_FIELD, given, model)
    return [_from_base64(f"{BASE64_FIELD}[{i}]", matrix, model) for i, matrix in enumerate(given or ())]


def _from_list(field: str, value: object, model: Model) -> Decoded:
    if not isinstance(value, list):
        raise BadRequest(field, value, "a list of rows")
    return _whole(field, decode(field, value, None, None, model.bounds(projected=False)), model)


def _from_base64(field: str, given: Matrix, model: Model) -> Decoded:
    field = f"{field}.data"
    vectors = decode(field, given.data, given.shape, given.dtype, model.bounds(projected=False))
    return _whole(field, vectors, model)


def _whole(field: str, vectors: torch.Tensor, model: Model) -> Decoded:
    check_values(field, vectors, model.max_magnitude, model.dtype)
    return Decoded(field, vectors.to(model.dtype), positions=tuple(range(len(vectors))))


def _depth(value: object) -> int:
    depth = 0
    while isinstance(value, list) and depth < _DEEP:
        depth += 1
        value = value[0] if value else None
    return depth
