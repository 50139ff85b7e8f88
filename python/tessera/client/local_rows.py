"""Which rows of a local model are asked for, and how they are pooled: the server's own schemas, without the server."""

from typing import Any

import numpy as np

from tessera.capabilities.embed import options as embed
from tessera.capabilities.embed.options import EmbedFields, EmbedOptions, Pooling
from tessera.capabilities.states import options as states
from tessera.capabilities.states.options import StateFields, StateOptions
from tessera.capability import Progress
from tessera.client.results import Embedding, Floats
from tessera.errors import BadRequest
from tessera.fields import read
from tessera.rows.reads import Over


def embed_options(value: Any, hidden_size: int) -> EmbedOptions | None:
    """Read ``return_embedding``; None where nothing is asked for.

    Raises:
        BadRequest: it is wrong.
    """
    return embed.options_of(read({embed.FIELD: value}, EmbedFields), hidden_size)


def state_options(value: Any) -> StateOptions | None:
    """Read ``return_hidden_states``; None where nothing is asked for.

    Raises:
        BadRequest: it is wrong.
    """
    return states.options_of(read({states.FIELD: value}, StateFields).return_hidden_states, states.Format.LIST)


def span_rows(rows: Floats, prompt_tokens: int, over: Over) -> Floats:
    """Those of the N+M-1 rows that are meant."""
    begin, end = Progress(prompt_tokens, len(rows) - prompt_tokens + 1).span(over)
    return rows[begin:end]


def pool(rows: Floats, options: EmbedOptions) -> Embedding:
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


def select(rows: Floats, prompt_tokens: int, options: StateOptions) -> Floats:
    """Those of the rows ``[n, H]`` that are meant.

    Raises:
        BadRequest: there is no such position.
    """
    if options.last:
        return rows[-1:]
    if options.positions is None:
        return span_rows(rows, prompt_tokens, options.over)
    if max(options.positions) >= len(rows):
        most = max(options.positions)
        raise BadRequest(f"{states.FIELD}.positions", most, f"positions of the {len(rows)} rows, 0 to {len(rows) - 1}")
    return rows[list(options.positions)]
