"""Streams begin with their first chunk: what SGLang refuses before it has a status, as without a stream."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import orjson
from fastapi.responses import JSONResponse, StreamingResponse

from tessera.errors import OF_ROWS

_DATA = b"data: "
_ERROR = _DATA + b'{"error":'
_ABORTED = b'"type":"abort"'


async def with_first_chunk(response: Any) -> Any:
    """The response; a stream once its first chunk is there, as SGLang's OpenAI routes wait for it.

    Raises:
        Exception: whatever the stream raises before its first chunk.
    """
    if not isinstance(response, StreamingResponse):
        return response
    rest = aiter(response.body_iterator)
    first = await anext(rest, b"")
    if (refusal := _refusal(first)) is not None:
        async for _ in rest:  # SGLang ends it by itself
            pass
        message, status = refusal
        return JSONResponse({"error": {"message": message}}, status, background=response.background)

    async def whole() -> AsyncIterator[Any]:
        yield first
        async for chunk in rest:
            yield chunk

    response.body_iterator = whole()
    return response


def _refusal(chunk: Any) -> tuple[str, int] | None:
    """Message and status, if the chunk of ``/generate`` says that the whole request is refused.

    SGLang's main process writes an error; its scheduler an answer that is aborted with a status. Of several prompts, or
    samples, each has its own.
    """
    if not isinstance(chunk, bytes) or not (chunk.startswith(_ERROR) or _ABORTED in chunk):
        return None
    event = orjson.loads(chunk.removeprefix(_DATA))
    if "error" in event:
        return event["error"]["message"], event["error"].get("code") or HTTPStatus.BAD_REQUEST
    reason = event["meta_info"]["finish_reason"] or {}
    status = reason.get("status_code")
    if "index" in event or status is None or reason["err_type"] in OF_ROWS:  # of rows: its last chunk says so
        return None
    return reason["message"], status
