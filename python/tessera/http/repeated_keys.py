"""Keys that a JSON object has twice: decoders take the last one, and nobody checks the first."""

import json
import re
from collections import Counter
from collections.abc import Collection
from functools import partial
from itertools import islice
from typing import Any

from tessera.errors import BadRequest, Described
from tessera.http.asgi import App, Receive, Scope, Send, replay_first, whole_body
from tessera.http.body_limit import refuse

_END_OF_KEY = re.compile(rb'"\s*:')


class UniqueFields:
    """ASGI middleware: bodies that SGLang decodes are refused if an object has one of our fields twice.

    Such a body is looked through for the names of our fields; one that has none of them twice is not decoded here.

    Args:
        app: the wrapped application.
        paths: the routes whose bodies are looked at.
        names: of our fields. One that is written with escapes is not found, and SGLang takes the last value.
    """

    def __init__(self, app: App, paths: Collection[str], names: Collection[str]) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._names = frozenset(names)
        self._field = re.compile(b'"(%s)"\\s*:' % "|".join(map(re.escape, sorted(names))).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        message = await whole_body(receive)
        try:
            self._check(message.get("body", b""))
        except BadRequest as error:
            await refuse(error, scope, send)
            return
        await self._app(scope, replay_first(message, receive), send)

    def _check(self, body: bytes) -> None:
        found = self._field.findall(body)
        if len(found) == len(set(found)):
            return
        try:
            json.loads(body, object_pairs_hook=partial(_unique, names=self._names))
        except (ValueError, RecursionError):
            return  # SGLang says what is wrong with it


def refuse_repeated_keys(body: bytes, value: dict[str, Any]) -> None:
    """Compare a body with what a decoder made of it; a second, slower decoding only where the body may have more keys.

    Args:
        body: the JSON text.
        value: as it was decoded.

    Raises:
        BadRequest: an object has a key twice; names it.
    """
    try:
        # Every key ends so, and perhaps a text contains it: there are never fewer. The search ends with the first more.
        if next(islice(_END_OF_KEY.finditer(body), _keys(value), None), None) is not None:
            json.loads(body, object_pairs_hook=_unique)
    except RecursionError as error:
        raise BadRequest("body", Described("objects or lists inside each other"), "fewer levels") from error


def _keys(value: object) -> int:
    """How many keys the objects in it have; those in a list that does not begin with an object are not counted."""
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return sum(map(_keys, value))
    return 0


def _unique(pairs: list[tuple[str, Any]], names: Collection[str] | None = None) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(key for key, _ in pairs)
        repeated = next((key for key in found if times[key] > 1 and (names is None or key in names)), None)
        if repeated is not None:
            raise BadRequest(repeated, [own for key, own in pairs if key == repeated], "once in an object")
    return found
