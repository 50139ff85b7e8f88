"""Server-sent events of ``/generate``: line by line to pieces of text, and at the end the whole generation."""

import json
from collections.abc import Mapping
from typing import Any

from tessera.client import answers
from tessera.client.errors import ConnectionFailed, InvalidResponse
from tessera.client.results import Delta
from tessera.client.status import shown, status_error

_PREFIX = "data:"
_DONE = "[DONE]"
_TRUNCATED = "the stream ended before the generation did; the text so far is not whole: send the request again"


class StreamReader:
    """Reads one stream.

    Each event of SGLang holds all that was generated so far, and on a server with ``--incremental-streaming-output``
    only what is new; the number of completed tokens tells which.

    Args:
        wanted: fields of `tessera.client.results.Generation` that were asked for.
        sent: the request's body.
    """

    def __init__(self, wanted: frozenset[str], sent: Mapping[str, Any] | None = None) -> None:
        self._wanted = wanted
        self._sent = sent or {}
        self._text = ""
        self._ids: list[int] = []
        self._finished = False

    def read(self, line: str) -> Delta | None:
        """The piece that a line brings, None if it brings none.

        Raises:
            ClientError: the generation failed or was aborted, or the line is none of a stream.
        """
        if not line.startswith(_PREFIX) or (data := line.removeprefix(_PREFIX).strip()) == _DONE:
            return None
        try:
            event = json.loads(data)
            if "error" in event:
                error = event["error"]
                status = error.get("code")
                raise status_error(status if isinstance(status, int) else 500, error)
            return self._delta(event)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidResponse(f"this is no event of a stream ({error!r}): {shown(data)}") from error

    def end(self) -> None:
        """To be called when no line is left.

        Raises:
            ConnectionFailed: the last piece never came.
        """
        if not self._finished:
            raise ConnectionFailed(_TRUNCATED)

    def _delta(self, event: dict[str, Any]) -> Delta:
        text, ids, meta = event["text"], event["output_ids"], event["meta_info"]
        known_text, known_ids = len(self._text), len(self._ids)
        if len(ids) == meta["completion_tokens"]:
            self._text, self._ids = text, ids
        else:
            self._text, self._ids = self._text + text, self._ids + ids
        final = None
        if meta["finish_reason"] is not None:
            final = answers.generation(event | {"text": self._text, "output_ids": self._ids}, self._wanted, self._sent)
            self._finished = True
        return Delta(self._text[known_text:], tuple(self._ids[known_ids:]), final)
