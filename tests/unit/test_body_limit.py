"""Bodies of routes that are not ours: bounded by what they announce, and by what comes."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from tessera.flags import Flags
from tessera.http.asgi import App, Message, Receive, Send
from tessera.http.body_limit import BodyLimit
from tessera.limits import DRAIN_BYTES, DRAIN_SECONDS

SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": []}
SECONDS = Flags().body_max_seconds


class Jumping(selectors.DefaultSelector):
    """Where an event loop would sleep until its next timer, the time jumps there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; a loop without a timer would wait for ever."""
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is left that could happen"
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time is that of its selector, not of the machine."""

    def __init__(self) -> None:
        self._jumping = Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since it began."""
        return self._jumping.now


def limited(app: App, most: dict[str, tuple[int, str]], scope: Any, receive: Receive, send: Send) -> float:
    """One request to an app behind the limit: how many seconds it took."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(BodyLimit(app, most, SECONDS)(scope, receive, send))
        return runner.get_loop().time()


class Echo:
    """An app that reads the whole body and answers how long it was; an early client is answered 400."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        self.calls += 1
        seen, status, more = 0, 200, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                status = 400
                break
            seen += len(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": str(seen).encode()})


class Posted:
    """What became of a request whose body comes in these pieces; None stands for a client that sends no more.

    Attributes:
        status: of the answer.
        body: of the answer.
        calls: how often the app was called.
        seconds: how long it took.
        unread: pieces that nobody has taken.
        whole: whether the answer's last message came.
    """

    def __init__(self, pieces: list[bytes | None], *, path: str = "/generate", announced: str | None = None) -> None:
        self.app = Echo()
        self.sent = list[Message]()
        self._waiting = pieces
        headers = [] if announced is None else [(b"content-length", announced.encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        self.seconds = limited(self.app, {"/generate": (10, "--option")}, scope, self._receive, self._send)
        self.status = self.sent[0]["status"]
        self.body = b"".join(message["body"] for message in self.sent[1:])
        self.calls = self.app.calls
        self.unread = len(self._waiting)
        self.whole = [message.get("more_body", False) for message in self.sent[1:]][-1] is False

    async def _receive(self) -> Message:
        piece = self._waiting.pop(0)
        if piece is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": bool(self._waiting)}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


def test_within() -> None:
    """Untouched."""
    answer = Posted([b"12345", b"67890"], announced="10")
    assert (answer.status, answer.body, answer.calls) == (200, b"10", 1)


@pytest.mark.parametrize("announced", ["11", "99999999999999999999"])
def test_announced(announced: str) -> None:
    """Answered before it is read, and then read to its end: a client that sends it all first can read the answer."""
    answer = Posted([b"12345", b"678901"], announced=announced)
    assert (answer.status, answer.calls, answer.unread, answer.whole) == (413, 0, 0, True)
    assert orjson.loads(answer.body)["error"]["code"] == "too_large"
    assert answer.sent[1]["body"] == answer.body


def test_not_all_of_it_is_read() -> None:
    """Whoever sends without end is left."""
    answer = Posted([b"1" * (DRAIN_BYTES // 8)] * 10, announced="99999999999")
    assert (answer.status, answer.unread, answer.whole) == (413, 2, True)


def test_a_rest_that_does_not_come() -> None:
    """Whoever announces more and sends nothing is left, too; the answer came before."""
    answer = Posted([b"12345", None], announced="11")
    assert (answer.status, answer.whole) == (413, True)
    assert answer.seconds == pytest.approx(DRAIN_SECONDS)


@pytest.mark.parametrize("announced", [None, "5", "many"])
def test_longer_than_announced(announced: str | None) -> None:
    """The app's own answer to a client that left is not what the client sees."""
    answer = Posted([b"12345", b"678901", b"2"], announced=announced)
    assert (answer.status, answer.calls, answer.unread, answer.whole) == (413, 1, 0, True)
    assert "--option" in orjson.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize("path", ["/generate", "/flush_cache"])
def test_a_body_that_does_not_come(path: str) -> None:
    """The time is limited on every route."""
    answer = Posted([b"123", None, None], path=path)
    assert (answer.status, answer.calls, answer.whole) == (408, 1, True)
    assert answer.seconds == pytest.approx(SECONDS)
    error = orjson.loads(answer.body)["error"]
    assert (error["code"], error["param"]) == ("too_slow", "body")
    assert "--body-max-seconds" in error["message"]


def test_a_client_that_waits_for_its_answer() -> None:
    """Once the body is there, the time that an answer takes is nobody's business."""

    async def slow(_: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        await asyncio.wait([gone], timeout=10 * SECONDS)
        await send({"type": "http.response.start", "status": 204 if gone.done() else 200, "headers": []})
        gone.cancel()

    sent = list[Message]()
    waiting = [{"type": "http.request", "body": b"1", "more_body": False}]

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    assert limited(slow, {}, SCOPE, receive, send) == pytest.approx(10 * SECONDS)
    assert [message.get("status") for message in sent] == [200]


def test_an_app_that_fails_because_its_client_left() -> None:
    """What it raises is not the answer; what it raises otherwise is not hidden."""

    async def failing(_: MutableMapping[str, Any], receive: Receive, __: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise RuntimeError("the client left")

    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    def go(first: Message) -> None:
        waiting = [first, {"type": "http.disconnect"}]

        async def receive() -> Message:
            return waiting.pop(0)

        limited(failing, {"/": (1, "")}, SCOPE, receive, send)

    go({"type": "http.request", "body": b"12", "more_body": False})
    assert sent[0]["status"] == 413
    with pytest.raises(RuntimeError, match="the client left"):
        go({"type": "http.request", "body": b"1", "more_body": False})


def test_other_routes() -> None:
    """They have limits of their own, or none."""
    answer = Posted([b"1" * 50], path="/update_weights_from_tensor", announced="50")
    assert (answer.status, answer.body, answer.calls) == (200, b"50", 1)
