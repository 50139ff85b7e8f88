"""Prompts: checks of token ids, before SGLang's scheduler sees them, and a part of the prefix cache for one request."""

from typing import Annotated, Any
from uuid import uuid4

import msgspec
from msgspec import Meta

from tessera.errors import BadRequest


def check_prompts(field: str, value: object, vocabulary: int) -> None:
    """Refuse prompts without tokens, and token ids that the model does not have: they end SGLang's scheduler.

    Args:
        field: the request's field.
        value: token ids, or a list of them; anything else is not looked at.
        vocabulary: how many token ids there are; 0 where the model is not known yet.

    Raises:
        BadRequest: a prompt is empty, or an id is negative or too large.
    """
    if not isinstance(value, list):
        return
    several = bool(value) and isinstance(value[0], list)
    for i, ids in enumerate(value if several else [value]):
        name = f"{field}[{i}]" if several else field
        if not ids:
            raise BadRequest(name, ids, "at least one token id")
        if not vocabulary or not isinstance(ids, list) or ids_below(vocabulary, ids) is not None:
            continue
        kinds = set(map(type, ids))  # a boolean is an integer in Python
        if kinds <= {int, bool} and kinds and (bool in kinds or not 0 <= min(ids) <= max(ids) < vocabulary):
            at = next(at for at, token in enumerate(ids) if type(token) is bool or not 0 <= token < vocabulary)
            raise BadRequest(f"{name}[{at}]", ids[at], f"a token id, 0 to {vocabulary - 1}")


def ids_below(vocabulary: int, ids: list[Any]) -> list[int] | None:
    """The same ids; None where one is no integer, negative or not below ``vocabulary``.

    One pass in C: a body may hold millions, and the loop that finds the culprit would stop the event loop.
    """
    try:
        return msgspec.convert(ids, list[Annotated[int, Meta(ge=0, lt=vocabulary)]])
    except msgspec.ValidationError:
        return None


def private_cache_key(extra_key: Any) -> Any:
    """A part of the prefix cache that nobody else finds, below a request's own ``extra_key``: one, or one for each."""
    own = uuid4().hex
    return [f"{key}{own}" for key in extra_key] if isinstance(extra_key, list) else f"{extra_key or ''}{own}"
