"""``return_embedding``: one vector, pooled from the rows of a request."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pybase64

from tessera.capabilities.embed import flags as own_flags
from tessera.capabilities.embed import schema
from tessera.capabilities.embed.bodies import EmbeddingsRequest, EncodeRequest
from tessera.capabilities.embed.options import APPLIED, FIELD, EmbedFields, EmbedOptions, Encoding, Pooling, options_of
from tessera.capability import Answer, Capability, IncomingRequest, Place, Progress, Shape
from tessera.errors import NO_SUCH_POSITION, BadRequest, RequestFailed
from tessera.flags import Flags
from tessera.limits import LISTED_VALUE_BYTES
from tessera.metrics import Counter
from tessera.rows.reads import Over, Pool, Pooled, Read, Vector
from tessera.telemetry import count, timed

EMBEDDINGS = Counter("embeddings_total", "Embeddings answered.")
POOLED = Counter("rows_pooled_total", "Rows that went into the embeddings answered.")
ENCODE = "encode_embedding"


class Embed(Capability[EmbedFields, EmbedOptions]):
    """See `tessera.capability.Capability`."""

    name = "embed"
    fields = EmbedFields
    options = EmbedOptions
    bodies = (EmbeddingsRequest, EncodeRequest)
    without_tokens = (FIELD,)
    answers = dict.fromkeys(("embedding", "embeddings", "embedding_tokens", APPLIED), Place.CHOICE)
    counters = (EMBEDDINGS, POOLED)
    work = (ENCODE,)

    def refused(self, flags: Flags, *, rows: bool) -> list[str]:
        """Its own options, on a server without rows."""
        return own_flags.refused(flags, rows=rows)

    def admit(self, fields: EmbedFields, request: IncomingRequest) -> Sequence[EmbedOptions | None]:
        """``true`` gives each option its default."""
        options = options_of(fields, request.server.hidden_size)
        if options is None:
            return []
        given = request.fields[FIELD]
        if options.spans is not None and "over" in given:
            raise BadRequest(f"{FIELD}.spans", given["spans"], "either spans or over")
        if options.over is Over.OUTPUT and any(own.get("max_new_tokens") in (0, 1) for own in request.params):
            raise BadRequest(f"{FIELD}.over", str(Over.OUTPUT), "output needs max_new_tokens of 2 or more")
        return [options]

    def reads(self, options: EmbedOptions, progress: Progress) -> Sequence[Read]:
        """One span, or those that were asked for."""
        if progress.running:
            return ()
        spans = options.spans or (progress.span(options.over),)
        last = max(end for _, end in spans)
        if last > progress.rows:
            raise RequestFailed(
                NO_SUCH_POSITION,
                f"a span ends at {last}, and this request has {progress.rows} rows: 0 to {progress.rows - 1}",
            )
        return [_pool(options.pooling, start, end) for start, end in spans]

    async def respond(self, options: EmbedOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """The vector, how many rows it is made of, and how."""
        pooled: Sequence[Pooled] = values
        count(EMBEDDINGS, len(pooled))
        count(POOLED, sum(one.tokens for one in pooled))
        with timed(ENCODE):
            return answer_fields(pooled, options)

    def without(self, options: EmbedOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """A null vector, of no rows."""
        return {"embedding" if options.spans is None else "embeddings": None, "embedding_tokens": 0}

    def size(self, options: EmbedOptions, shape: Shape, prompt_tokens: int, new_tokens: int) -> int:
        """A vector for each span."""
        each = 4 if options.encoding_format is Encoding.BASE64 else LISTED_VALUE_BYTES
        return len(options.spans or (1,)) * (options.dimensions or shape.hidden_size) * each

    def sent(self, options: EmbedOptions) -> dict[str, Any]:
        """The object with all options that are in force."""
        shown = msgspec.structs.asdict(options)
        del shown["spans" if options.spans is None else "over"]
        return {FIELD: shown}

    def complete_schema(
        self, schemas: dict[str, Any], hidden_size: int | None, vocabulary: int | None, *, adapters: bool
    ) -> None:
        """``dimensions`` up to H, and the bodies of the routes."""
        schema.complete(schemas, hidden_size, vocabulary, adapters=adapters)

    def paths(self) -> dict[str, Any]:
        return schema.paths()


def _pool(pooling: Pooling, start: int, end: int) -> Pool:
    """``first`` and ``last`` are means over one row."""
    if start < end and pooling is Pooling.FIRST:
        end = start + 1
    elif start < end and pooling is Pooling.LAST:
        start = end - 1
    return Pool(start, end, largest=pooling is Pooling.MAX)


def answer_fields(pooled: Sequence[Pooled], options: EmbedOptions) -> dict[str, Any]:
    """The fields ``embedding``, ``embedding_tokens`` and ``embedding_options`` of ``meta_info``.

    Args:
        pooled: the vector, ``[H]`` float32, and how many rows it is made of. Where nothing was generated and ``over``
            is ``output``, there is none, and the answer is null. With ``spans`` there is one for each, and the answer
            has ``embeddings``.
        options: how to write vectors.
    """
    vectors = [None if one.vector is None else _written(one.vector, options) for one in pooled]
    tokens = [one.tokens for one in pooled]
    if options.spans is not None:
        return {"embeddings": vectors, "embedding_tokens": tokens, APPLIED: options.applied()}
    return {"embedding": vectors[0], "embedding_tokens": tokens[0], APPLIED: options.applied()}


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
