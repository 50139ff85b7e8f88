"""The JSON of an error, the same on every route; and what an operator sees of it."""

import logging
from http import HTTPStatus
from typing import Any

from tessera import config
from tessera.errors import BadRequest, EngineRefused, TesseraError

logger = logging.getLogger(__name__)


def error_body(error: Exception) -> dict[str, Any]:
    """Message, type, the field, and a stable code."""
    known = error if isinstance(error, TesseraError) else TesseraError(str(error))
    server = known.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    body = {
        "message": str(error),
        "type": "server_error" if server else "invalid_request_error",
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
    if config.metrics is not None:
        config.metrics.failed(error.code)
    failed = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    field = error.field if isinstance(error, BadRequest | EngineRefused) else None
    detail = f": {error}" if failed else f": field {field!r}" if field else ""
    logger.log(
        logging.ERROR if failed else logging.INFO, "tessera: %s: %d %s%s", where, error.status, error.code, detail
    )
