"""From the pooled vector, as it comes from the scheduler, to the fields of the answer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pybase64

from tessera.capabilities.embed.options import APPLIED, EmbedOptions, Encoding
from tessera.rows.reads import Pooled, Vector


def answer(pooled: Sequence[Pooled], options: EmbedOptions) -> dict[str, Any]:
    """The fields ``embedding``, ``embedding_tokens`` and ``embedding_options`` of ``meta_info``.

    Args:
        pooled: the vector, ``[H]`` float32, and how many rows it is made of. Where nothing was generated and ``over``
            is ``output``, there is none, and the answer is null. With ``spans`` there is one for each, and the answer
            has ``embeddings``.
        options: how to write vectors.
    """
    written = [None if one.vector is None else _written(one.vector, options) for one in pooled]
    tokens = [one.tokens for one in pooled]
    if options.spans is not None:
        return {"embeddings": written, "embedding_tokens": tokens, APPLIED: options.applied()}
    return {"embedding": written[0], "embedding_tokens": tokens[0], APPLIED: options.applied()}


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
