"""The exception tree. Each error has a stable code, an HTTP status and a message that says what to do next.

- `TesseraError`
    - `BadRequest` (400): a field of the request is wrong
        - `BadValue`: the same as a ``ValueError``
        - `TooLarge` (413): a request or its answer is too much as a whole
        - `TooSlow` (408): a body does not come in time
        - `BadFingerprint` (400): a TOPLOC fingerprint is malformed
    - `EngineRefused` (400): SGLang itself refused the request
    - `RequestFailed` (400, 503 or 500): one request, admitted, cannot be answered
        - `RowsUnavailable` (503): its tokens can be answered, its rows cannot
    - `StartRefused`: the server must not start like this
"""

import reprlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tessera.limits import MAX_ECHOED_CHARACTERS

_short = reprlib.Repr()
_short.maxstring = _short.maxother = MAX_ECHOED_CHARACTERS

ROW_STORE_FAILED = "row_store_failed"
"""500: a read of the row store failed, or an earlier write. Look for ``tessera:`` in the log, and restart the server
if the store is broken."""
ROWS_NOT_FINITE = "rows_not_finite"
"""500: a row is NaN or infinite: the model overflows on this prompt."""
ROWS_NOT_COLLECTED = "rows_not_collected"
"""500: the rows did not arrive within 30 s. Send it again; if it stays, report it with the lines of
the log that have ``tessera:``."""
NO_SUCH_POSITION = "no_such_position"
"""400: ``return_hidden_states.positions`` or a span is beyond the N+M-1 rows that the request has."""
REQUEST_ABORTED = "request_aborted"
"""503: the request was aborted before it was done, for example by an operator. Send it again."""
WEIGHTS_CHANGED = "weights_changed"
"""503: the weights changed while the request ran, on a route that answers only rows. Send it again."""

OF_ROWS = frozenset(
    {ROW_STORE_FAILED, ROWS_NOT_FINITE, ROWS_NOT_COLLECTED, NO_SUCH_POSITION, REQUEST_ABORTED, WEIGHTS_CHANGED}
)
"""Codes of requests that failed for their rows."""

WITHOUT_ROWS = (REQUEST_ABORTED, WEIGHTS_CHANGED)
"""Codes of answers that stand without their rows."""

_STATUS = {NO_SUCH_POSITION: 400, REQUEST_ABORTED: 503, WEIGHTS_CHANGED: 503}
"""HTTP status of requests that failed; 500 for codes that are not here."""


class Described(str):
    """What stands for a value in a message, not the value itself: shown without quotes.

    A unit test finds texts of our source that are given to `BadRequest` as a value without it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class TesseraError(Exception):
    """Base of every error that Tessera raises."""

    code = "tessera_error"
    status = 500


class BadRequest(TesseraError):
    """HTTP 400: a field is wrong, or the server lacks the flag it needs. Says what is allowed.

    Not a ``ValueError``: pydantic would swallow it and echo the whole request body instead.
    """

    code = "bad_request"
    status = 400

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field if len(field) <= MAX_ECHOED_CHARACTERS else field[:MAX_ECHOED_CHARACTERS] + "…"
        self.allowed = allowed
        shown = "nothing" if value is None else _short.repr(value)[:MAX_ECHOED_CHARACTERS]
        super().__init__(f"{self.field}: got {shown}; allowed: {allowed}")


class BadValue(BadRequest, ValueError):
    """A `BadRequest` where SGLang answers 400 to a ``ValueError`` alone, and 500 to anything else.

    Args:
        error: whose status, code and message it has.
    """

    def __init__(self, error: BadRequest) -> None:
        ValueError.__init__(self, str(error))
        self.field, self.allowed, self.code, self.status = error.field, error.allowed, error.code, error.status


class TooLarge(BadRequest):
    """HTTP 413: a request or its answer is too large as a whole. A limit of one field's value is a ``bad_request``."""

    code = "too_large"
    status = 413


class TooSlow(BadRequest):
    """HTTP 408: the body took longer than ``--body-max-seconds``."""

    code = "too_slow"
    status = 408


class BadFingerprint(BadRequest):
    """HTTP 400: a TOPLOC fingerprint is malformed, or there are too many or too few of them."""

    code = "bad_fingerprint"


class EngineRefused(TesseraError):
    """HTTP 400: SGLang itself refused the request, for example a prompt longer than the context.

    Attributes:
        field: the item of a batch that it refused, None if not known.
    """

    code = "engine_refused"
    status = 400

    def __init__(self, message: str, field: str | None = None) -> None:
        self.field = field
        super().__init__(f"{field}: {message}" if field else message)


class RequestFailed(TesseraError):
    """An admitted request cannot be answered: 400 if only its end could show it, 503 if aborted, 500 if we failed."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.reason = message
        self.status = _STATUS.get(code, 500)
        super().__init__(f"{code}: {message}")


class RowsUnavailable(RequestFailed):
    """There are no rows to vouch for. An answer with generated tokens stands without them, and says why.

    Attributes:
        values: what was read all the same, for it needs no rows; by capability.
    """

    values: Mapping[str, Sequence[Any]] = MappingProxyType({})


class StartRefused(TesseraError):
    """The server must not start: an option, a version or a seam does not fit."""

    code = "start_refused"


ANSWERED: Mapping[str, int] = {
    **{kind.code: kind.status for kind in (BadRequest, BadFingerprint, EngineRefused, TooLarge, TooSlow, TesseraError)},
    **{code: _STATUS.get(code, TesseraError.status) for code in sorted(OF_ROWS)},
}
"""Every code that an answer can have, and its HTTP status."""
