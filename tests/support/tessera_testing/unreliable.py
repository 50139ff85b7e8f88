"""A proxy in front of a real server that breaks some of its answers on purpose, for tests of clients: ours and others.

Example::

    with UnreliableProxy(server.url) as proxy:
        proxy.next(status(503), cut_within(0.5))  # the first two requests; later ones pass
        Client(proxy.url).encode("import os")
"""

from __future__ import annotations

import http.client
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from tessera.launching.ports import HOST

_SECONDS = 600.0
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Answered(NamedTuple):
    """A whole answer of the server behind."""

    status: int
    headers: dict[str, str]
    body: bytes


class Exchange:
    """One request, and the ways to answer it or not to.

    Args:
        handler: of this request.
        body: of this request.
        target: URL of the server behind.
        over: set when the proxy stops.
    """

    def __init__(self, handler: BaseHTTPRequestHandler, body: bytes, target: str, over: threading.Event) -> None:
        self._handler = handler
        self._body = body
        self._target = target
        self._over = over

    def forward(self) -> Answered:
        """Ask the server behind. ``OSError`` or ``http.client.HTTPException`` where it does not answer."""
        address = urlsplit(self._target)
        connection = http.client.HTTPConnection(address.hostname or HOST, address.port, timeout=_SECONDS)
        try:
            headers = {k: v for k, v in self._handler.headers.items() if k.lower() not in _HOP_BY_HOP}
            connection.request(self._handler.command, self._handler.path, self._body or None, headers)
            answer = connection.getresponse()
            kept_headers = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP_BY_HOP}
            return Answered(answer.status, kept_headers, answer.read())
        finally:
            connection.close()

    def send(self, answer: Answered, *, most: int | None = None) -> None:
        """Send an answer; with `most` its headers promise all of the body and so many bytes follow."""
        self._handler.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()
        self.write(answer.body[:most])

    def write(self, content: bytes) -> None:
        """Send bytes as they are."""
        self._handler.wfile.write(content)
        self._handler.wfile.flush()

    def hang_up(self) -> None:
        """Close the connection after this."""
        self._handler.close_connection = True

    def wait(self, seconds: float) -> bool:
        """Wait; returns whether the proxy has stopped meanwhile."""
        return self._over.wait(seconds)


Fault = Callable[[Exchange], None]
"""What to do with one request."""


def passed(exchange: Exchange) -> None:
    """No fault."""
    exchange.send(exchange.forward())


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    """Answer with this status, without asking the server; ``_`` in names of headers is ``-``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.send(Answered(code, named, body))


def cut_before(exchange: Exchange) -> None:
    """Hang up without an answer."""
    exchange.hang_up()


def cut_within(share: float) -> Fault:
    """Hang up after this share of the body."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.send(answer, most=int(share * len(answer.body)))
        exchange.hang_up()

    return fault


def delayed(seconds: float) -> Fault:
    """Answer later."""

    def fault(exchange: Exchange) -> None:
        if not exchange.wait(seconds):
            passed(exchange)

    return fault


def hang(exchange: Exchange) -> None:
    """Never answer."""
    exchange.wait(_SECONDS)
    exchange.hang_up()


def hang_within(exchange: Exchange) -> None:
    """Send half of the body, and then nothing."""
    cut_within(0.5)(exchange)
    exchange.wait(_SECONDS)


def drip(exchange: Exchange) -> None:
    """Send the body byte by byte, ten a second."""
    answer = exchange.forward()
    exchange.send(answer, most=0)
    for i in range(len(answer.body)):
        if exchange.wait(0.1):
            break
        exchange.write(answer.body[i : i + 1])
    exchange.hang_up()


def rewritten(change: Callable[[Answered], Answered]) -> Fault:
    """Send another answer in the place of the server's."""
    return lambda exchange: exchange.send(change(exchange.forward()))


def truncated(share: float) -> Fault:
    """Send this share of the body as if it were all."""
    return rewritten(lambda answer: answer._replace(body=answer.body[: int(share * len(answer.body))]))


class UnreliableProxy:
    """An HTTP proxy for one server, as a context manager.

    Args:
        target: URL of the server behind; may be set anew at any time.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._faults: deque[Fault] = deque()
        self._always: Fault = passed
        self._over = threading.Event()
        self._seen = 0
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def next(self, *faults: Fault) -> None:
        """Do these to the next requests, one each."""
        self._faults.extend(faults)

    @contextmanager
    def always(self, fault: Fault) -> Iterator[None]:
        """Do this to every request that has no other."""
        self._always = fault
        try:
            yield
        finally:
            self._always = passed

    def taken(self) -> int:
        """How many requests came since this was last asked."""
        seen, self._seen = self._seen, 0
        return seen

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self._seen += 1
        fault = self._faults.popleft() if self._faults else self._always
        try:
            fault(Exchange(handler, body, self.target, self._over))
        except (OSError, http.client.HTTPException):  # the server behind is gone, or the client: so is this connection
            handler.close_connection = True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        handle = self._handle

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                handle(self)

            do_GET = do_POST  # noqa: N815 - the same

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
                """Nothing: pytest shows what matters."""

        return Handler
