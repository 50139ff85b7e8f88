"""What can go wrong for a client. Each message says what to do next.

- `ClientError`
    - `HttpError`: no answer came
        - `ConnectionFailed`: refused, reset or cut off; tried again
        - `RequestTimeout`: the time that the call was given is over
    - `RequestRefused`: a status of 400 to 499
        - `Unauthorized`: 401 or 403
        - `RateLimited`: 429; tried again
        - `HiddenStatesUnsupported`: the server keeps no rows, so it has neither embeddings nor hidden states
    - `ServerError`: a status of 500 or more, or the request was aborted; tried again
    - `InvalidResponse`: an answer came and is not what was asked for
        - `NotApplied`: a field of the request never reached the server; a proxy dropped it
    - `Unsupported`: this client cannot do that, whatever the server
"""


class ClientError(Exception):
    """Base of all.

    Attributes:
        retried: whether the client tries such a call again by itself.
        retry_after: seconds that the server asked to wait, or None.
    """

    retried = False

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class HttpError(ClientError):
    """The server sent no answer: the connection failed, or the time was over."""


class ConnectionFailed(HttpError):
    """The connection was refused, reset, or cut off before the answer was complete."""

    retried = True


class RequestTimeout(HttpError):
    """The time that the call was given is over, tries and pauses between them included."""


class StatusError(ClientError):
    """The server answered with an error status.

    Attributes:
        status: the HTTP status.
        code: the server's stable code (docs/reference/errors.md), None where it has none.
        field: the field of the request that is wrong, None if not known.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.status = status
        self.code = code
        self.field = field


class RequestRefused(StatusError):
    """400 to 499: the request is wrong; the same request will be refused again."""


class Unauthorized(RequestRefused):
    """401 or 403: the API key is missing or wrong."""


class RateLimited(RequestRefused):
    """429: too many requests for now."""

    retried = True


class HiddenStatesUnsupported(RequestRefused):
    """The server keeps no hidden states: no plugin, or started without ``--enable-return-hidden-states``."""


class ServerError(StatusError):
    """500 or more, or the request was aborted on the server."""

    retried = True


class InvalidResponse(ClientError):
    """An answer came that is not what was asked for: another type, length or shape. None of it is returned."""


class NotApplied(InvalidResponse):
    """The server did not do what a field asks for, so it never got the field: a proxy in front of it dropped it."""


class Unsupported(ClientError):
    """This client has no such capability, for example constrained decoding in a local model."""
