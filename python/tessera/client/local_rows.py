"""Which rows of a local model are asked for, and how they are pooled: the server's own schemas, without the server."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tessera.capabilities.embed import options as embed
from tessera.capabilities.embed.options import EmbedFields, EmbedOptions, Pooling, chosen
from tessera.capabilities.states import options as states
from tessera.capabilities.states.options import StateFields, StateOptions, options_of
from tessera.client.local_model import refused
from tessera.client.results import Embedding, Floats
from tessera.errors import BadRequest
from tessera.fields import read
from tessera.rows.span import Over, bounds


def embed_options(options: Mapping[str, Any], hidden_size: int) -> EmbedOptions:
    """Read the options of an embedding.

    Raises:
        RequestRefused: one is wrong.
    """
    try:
        return chosen(read({embed.FIELD: dict(options)}, EmbedFields), hidden_size) or EmbedOptions()
    except BadRequest as error:
        raise refused(str(error), error.code, error.field) from error


def state_options(value: Any) -> StateOptions | None:
    """Read ``hidden_states``; None where nothing is asked for.

    Raises:
        RequestRefused: it is wrong.
    """
    try:
        return options_of(read({states.FIELD: value}, StateFields).return_hidden_states, states.Format.LIST)
    except BadRequest as error:
        raise refused(str(error), error.code, error.field) from error


def spanned(rows: Floats, prompt_tokens: int, over: Over) -> Floats:
    """Those of the N+M-1 rows that are meant."""
    begin, end = bounds(over, prompt_tokens, len(rows) - prompt_tokens + 1)
    return rows[begin:end]


def pooled(rows: Floats, options: EmbedOptions) -> Embedding:
    """The vector of at least one row ``[n, H]``."""
    span = rows.astype(np.float64)
    vector = {
        Pooling.MEAN: lambda: span.mean(0),
        Pooling.MAX: lambda: span.max(0),
        Pooling.FIRST: lambda: span[0],
        Pooling.LAST: lambda: span[-1],
    }[options.pooling]()[: options.dimensions]
    if options.normalize:
        vector = vector / (np.linalg.norm(vector) or 1.0)
    single = options.pooling in (Pooling.FIRST, Pooling.LAST)
    return Embedding(vector.astype(np.float32), 1 if single else len(span))


def selected(rows: Floats, prompt_tokens: int, options: StateOptions) -> Floats:
    """Those of the rows ``[n, H]`` that are meant.

    Raises:
        RequestRefused: there is no such position.
    """
    if options.last:
        return rows[-1:]
    if options.positions is None:
        return spanned(rows, prompt_tokens, options.over)
    if max(options.positions) >= len(rows):
        raise refused(f"position {max(options.positions)} is beyond the {len(rows)} rows", "no_such_position")
    return rows[list(options.positions)]
