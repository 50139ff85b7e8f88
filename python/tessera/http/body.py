"""Read a JSON object from a request, strict about its keys. `tessera.http.body_limit` has bounded it."""

from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

import orjson

from tessera.errors import BadRequest, Described, TooLarge
from tessera.http.repeated_keys import refuse_repeated_keys
from tessera.limits import MAX_INPUTS
from tessera.prompts import ids_below


class Streamed(Protocol):
    """What we need of ``starlette.requests.Request``."""

    def stream(self) -> AsyncIterator[bytes]: ...


async def read_object(request: Streamed, allowed: Collection[str]) -> dict[str, Any]:
    """The body as a dictionary that holds no key but those allowed.

    Raises:
        BadRequest: not a JSON object, an unknown key, or one that is there twice.
    """
    body = b"".join([piece async for piece in request.stream()])
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest("body", Described(error), "a JSON object") from error
    if not isinstance(value, dict):
        raise BadRequest("body", value, "a JSON object")
    refuse_repeated_keys(body, value)
    for key in value:
        if key not in allowed:
            raise BadRequest(key, value[key], f"no such key; the keys are {', '.join(allowed)}")
    return value


def strings(field: str, value: object) -> list[str]:
    """One non-empty string or a list of them, as a list.

    Raises:
        BadRequest: anything else, or more than `MAX_INPUTS`.
    """
    texts: list[Any] = value if isinstance(value, list) else [value]
    check_count(field, texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            name = f"{field}[{i}]" if isinstance(value, list) else field
            raise BadRequest(name, text, "a text that is not empty")
    return texts


def token_ids(field: str, value: Any, vocabulary: int, *, least: int = 1) -> list[int]:
    """One prompt as token ids, each below ``vocabulary``: SGLang itself dies of one that is not.

    Raises:
        BadRequest: fewer than ``least``, or an item that is no token id.
    """
    if not isinstance(value, list) or len(value) < least:
        raise BadRequest(field, value, "a list of at least one token id" if least else "a list of token ids")
    found = ids_below(vocabulary, value)
    if found is None:
        i, item = next((i, item) for i, item in enumerate(value) if type(item) is not int or not 0 <= item < vocabulary)
        raise BadRequest(f"{field}[{i}]", item, f"a token id, 0 to {vocabulary - 1}")
    return found


def check_count(field: str, values: list[Any]) -> None:
    """Raise `BadRequest` where there are none, and `TooLarge` where there are more than `MAX_INPUTS`."""
    if not 1 <= len(values) <= MAX_INPUTS:
        error = TooLarge if values else BadRequest
        raise error(field, Described(f"{len(values)} inputs"), f"1 to {MAX_INPUTS}")
