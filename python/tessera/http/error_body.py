"""The JSON of an error, the same on every route."""

from http import HTTPStatus
from typing import Any

from tessera.errors import BadRequest, EngineRefused, TesseraError


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
