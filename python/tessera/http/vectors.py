"""Answers that hold many vectors: as one binary body where the client accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from safetensors.numpy import save

from tessera.delivery.outcome import Vectors


class Transport(StrEnum):
    """How a batch of vectors is sent, by media type."""

    JSON = "application/json"
    RAW = "application/octet-stream"
    SAFETENSORS = "application/vnd.safetensors"


def accepted(header: str | None) -> Transport:
    """The binary form that the ``Accept`` header names first, else JSON."""
    for part in (header or "").split(","):
        name = part.split(";")[0].strip().lower()
        if name in (Transport.RAW, Transport.SAFETENSORS):
            return Transport(name)
        if name == Transport.JSON:
            break
    return Transport.JSON


@dataclass(frozen=True, slots=True)
class Body:
    """A binary answer: its bytes, its media type, and headers that say what it holds."""

    content: bytes
    media_type: str
    headers: dict[str, str]


def binary(vectors: Sequence[Vectors], prompt_tokens: Sequence[int], transport: Transport) -> Body:
    """One body for the whole batch.

    ``application/octet-stream`` is the matrix ``[n, H]``, little-endian float32, row by row.
    ``application/vnd.safetensors`` holds it as ``embeddings``, and ``prompt_tokens`` ``[n]`` int64 beside it. The
    headers ``x-tessera-shape`` (``n,H``), ``x-tessera-dtype`` and ``x-tessera-prompt-tokens`` (their sum) come with
    both.
    """
    matrix = np.ascontiguousarray(np.stack(vectors), "<f4")
    headers = {
        "x-tessera-shape": ",".join(map(str, matrix.shape)),
        "x-tessera-dtype": "float32",
        "x-tessera-prompt-tokens": str(sum(prompt_tokens)),
    }
    if transport is Transport.SAFETENSORS:
        content = save({"embeddings": matrix, "prompt_tokens": np.array(prompt_tokens, np.int64)})
    else:
        content = matrix.tobytes()
    return Body(content, transport.value, headers)
