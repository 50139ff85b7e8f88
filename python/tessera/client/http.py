"""What the sync and the async client share of HTTP: address, headers, and httpx's errors in our words."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tessera import __version__
from tessera.client.calls import Call, Generating
from tessera.client.errors import ConnectionFailed
from tessera.client.options import Timeouts
from tessera.client.retry import Deadline

CONNECTIONS = httpx.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=2)
"""More calls at once wait for a connection to become free, as long as their time lasts.

SGLang closes a connection that is idle for 5 s, which is httpx's default too: a request could be sent while it closes.
"""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server, and how to call it.

    Attributes:
        url: of the server, ``http://`` or ``https://``, without the path of a route.
        api_key: of a server that was started with ``--api-key``.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            host = httpx.URL(self.url).host
        except httpx.InvalidURL:
            host = ""
        if not self.url.startswith(("http://", "https://")) or not host:
            raise ValueError(f"{self.url!r} is no URL of a server; it looks like http://127.0.0.1:30000")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("the API key has characters that no HTTP header can hold")

    def options(self) -> dict[str, Any]:
        """Arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""
        headers = {"User-Agent": f"sglang-tessera/{__version__}"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return {"base_url": self.url, "headers": headers, "limits": CONNECTIONS}


def arguments(call: Call[Any], deadline: Deadline, timeouts: Timeouts) -> dict[str, Any]:
    """Arguments of ``build_request`` for one try."""
    left = deadline.left
    headers = {"Accept": call.accept}
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    timeout = httpx.Timeout(left, connect=min(timeouts.connect, left))
    return {"method": call.method, "url": call.path, "content": call.content(), "headers": headers, "timeout": timeout}


def streaming(generating: Generating) -> Call[None]:
    """The request that brings a generation piece by piece; its answer is read by `tessera.client.stream`."""
    return Call("/generate", {**generating.body, "stream": True}, lambda _: None, generating.timeout)


@contextmanager
def translated_errors(url: str, deadline: Deadline) -> Iterator[None]:
    """Raise httpx's errors as ours."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise ConnectionFailed(f"{url} did not accept a connection in time; is it the right address?") from error
    except httpx.ConnectError as error:
        raise ConnectionFailed(
            f"nothing answers at {url} ({error}); start a server there, for example: tessera serve MODEL"
        ) from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise deadline.error() from error
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        raise ConnectionFailed(
            f"the connection to {url} broke before the answer was complete ({why}); look whether the server still runs"
        ) from error
