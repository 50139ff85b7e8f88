"""From the pooled vector, as it comes from the scheduler, to the fields of the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pybase64

from tessera.capabilities.embed.options import APPLIED, EmbedOptions, Encoding
from tessera.rows.reads import Vector


def answer(vector: Vector | None, tokens: int, options: EmbedOptions) -> dict[str, Any]:
    """The fields ``embedding``, ``embedding_tokens`` and ``embedding_options`` of ``meta_info``.

    Args:
        vector: ``[H]`` float32; None where nothing was generated and ``over`` is ``output``, and the answer is null.
        tokens: how many rows were pooled.
        options: how to write the vector.
    """
    written = None if vector is None else _written(vector, options)
    return {"embedding": written, "embedding_tokens": tokens, APPLIED: options.applied()}


def _written(vector: Vector, options: EmbedOptions) -> str | Vector:
    vector = vector[: options.dimensions]
    if options.normalize:
        vector = _unit(vector)
    if options.encoding_format is Encoding.BASE64:
        return pybase64.b64encode_as_string(vector.tobytes())
    return vector


def _unit(vector: Vector) -> Vector:
    length = np.linalg.norm(vector.astype(np.float64))
    return vector if length == 0 else (vector / length).astype("<f4")
