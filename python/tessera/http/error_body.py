"""The JSON of an error, the same on every route; and what an operator sees of it."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from tessera import config
from tessera.errors import BadRequest, EngineRefused, TesseraError

logger = logging.getLogger(__name__)
_SERVER = "server_error"


def error_body(error: Exception) -> dict[str, Any]:
    """The JSON of an error: message, type, field, and a stable code."""
    known = error if isinstance(error, TesseraError) else TesseraError(str(error))
    server = known.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    body = {
        "message": str(error),
        "type": _SERVER if server else "invalid_request_error",
        "param": error.field if isinstance(error, BadRequest | EngineRefused) else None,
        "code": known.code,
    }
    return {"error": body}


def note(error: TesseraError, where: str) -> None:
    """Count an error that is answered, and log it: without the message, which may have a part of the request.

    Args:
        error: the error.
        where: what it answers, such as ``POST /generate``.
    """
    _count(error.code)
    _log(f"{where}: {error.status}", error_body(error)["error"])


def note_items(field: str, errors: Sequence[dict[str, Any] | None]) -> None:
    """Count and log errors of items of one request: one line, with the first of the server's own, else the first.

    Args:
        field: of the request, which has the items.
        errors: what answers each of them, as in `error_body`; None for one that did not fail.
    """
    failed = [(i, error) for i, error in enumerate(errors) if error]
    for _, error in failed:
        _count(error["code"])
    if failed:
        i, error = max(failed, key=lambda one: one[1]["type"] == _SERVER)
        _log(f"{len(failed)} of {len(errors)} items of {field} failed, such as {field}[{i}]:", error)


def _count(code: str) -> None:
    if config.metrics is not None:
        config.metrics.count_error(code)


def _log(where: str, error: dict[str, Any]) -> None:
    failed = error["type"] == _SERVER
    detail = f": {error['message']}" if failed else f": field {error['param']!r}" if error["param"] else ""
    logger.log(logging.ERROR if failed else logging.INFO, "tessera: %s %s%s", where, error["code"], detail)
