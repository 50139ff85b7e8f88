"""Answers that hold many vectors: as one binary body where the client accepts it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from safetensors.numpy import save

from tessera.rows.reads import Vector


class Transport(StrEnum):
    """How a batch of vectors is sent, by media type."""

    JSON = "application/json"
    RAW = "application/octet-stream"
    SAFETENSORS = "application/vnd.safetensors"


def accepted_transport(header: str | None) -> Transport:
    """The transport that ``Accept`` prefers: by its ``q`` values, then by its order; JSON if it names none of them."""
    best, quality = Transport.JSON, 0.0
    for part in (header or "").split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name in list(Transport) and (own := _quality(parameters)) > quality:
            best, quality = Transport(name), own
    return best


def _quality(parameters: Sequence[str]) -> float:
    """The ``q`` of RFC 9110, section 12.4.2: 1 where there is none, 0 where it is no number."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return float(value) if re.fullmatch(r"\s*[01](\.\d{0,3})?\s*", value) else 0.0
    return 1.0


@dataclass(frozen=True, slots=True)
class Body:
    """A binary answer: its bytes, its media type, and headers that say what it holds."""

    content: bytes
    media_type: str
    headers: dict[str, str]


def binary(
    vectors: Sequence[Vector], prompt_tokens: Sequence[int], transport: Transport, applied: dict[str, Any]
) -> Body:
    """One body for the whole batch.

    ``application/octet-stream`` is the matrix ``[n, H]``, little-endian float32, row by row.
    ``application/vnd.safetensors`` holds it as ``embeddings``, and ``prompt_tokens`` ``[n]`` int64 beside it. The
    headers ``x-tessera-shape`` (``n,H``), ``x-tessera-dtype``, ``x-tessera-prompt-tokens`` (their sum) and
    ``x-tessera-embedding-options`` (JSON: ``applied``) come with both.
    """
    matrix = np.ascontiguousarray(np.stack(vectors), "<f4")
    headers = {
        "x-tessera-shape": ",".join(map(str, matrix.shape)),
        "x-tessera-dtype": "float32",
        "x-tessera-prompt-tokens": str(sum(prompt_tokens)),
        "x-tessera-embedding-options": json.dumps(applied),
    }
    if transport is Transport.SAFETENSORS:
        content = save({"embeddings": matrix, "prompt_tokens": np.array(prompt_tokens, np.int64)})
    else:
        content = matrix.tobytes()
    return Body(content, transport.value, headers)
