"""Room for answers: first come, first served, and nothing is lost of it whatever becomes of who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tessera.errors import RequestFailed
from tessera.http.answer_room import AnswerRoom
from tessera.http.asgi import Message, Receive, Scope, Send
from tessera.limits import PIECE_BYTES
from tessera.room import Lease, Room, lease


async def stays() -> bool:
    """A client that waits."""
    return False


async def left() -> bool:
    """A client that is gone."""
    return True


def nothing() -> None:
    """No reason to end."""


def test_first_come_first_served() -> None:
    """A small request does not pass a large one that waits; all have their turn."""

    async def go() -> None:
        room = Room(10)
        first, large, small = room.enter(6), room.enter(8), room.enter(1)
        await asyncio.sleep(0)
        assert [first.done(), large.done(), small.done()] == [True, False, False]
        room.leave(6, first)
        assert [large.done(), small.done(), room.free] == [True, True, 1]
        room.leave(8, large)
        room.leave(1, small)
        assert room.free == 10

    asyncio.run(go())


def test_who_leaves_the_line_makes_room_for_those_behind() -> None:
    """And takes nothing along."""

    async def go() -> None:
        room = Room(10)
        first, large, other, small = room.enter(6), room.enter(8), room.enter(7), room.enter(4)
        room.leave(7, other)
        assert (room.free, small.done()) == (4, False)
        room.leave(8, large)
        assert small.done()
        room.leave(6, first)
        room.leave(4, small)
        assert room.free == 10

    asyncio.run(go())


@pytest.mark.parametrize("end", ["client left", "aborted", "cancelled"])
def test_a_request_that_ends_while_it_waits(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is given up; the next one is served."""
    monkeypatch.setattr("tessera.room.LEFT_SECONDS", 0.001)

    def aborted() -> None:
        raise ValueError("aborted")

    async def go() -> None:
        room = Room(10)
        holder = room.enter(10)
        waiting = Lease(room, left if end == "client left" else stays)
        task = asyncio.ensure_future(waiting.acquire(5, aborted if end == "aborted" else nothing))
        await asyncio.sleep(0)
        if end == "cancelled":
            task.cancel()
        with pytest.raises((RequestFailed, ValueError, asyncio.CancelledError)):
            await task
        behind = room.enter(3)
        waiting.release()
        room.leave(10, holder)
        assert behind.done()
        room.leave(3, behind)
        assert room.free == 10

    asyncio.run(go())


def test_a_request_takes_once() -> None:
    """Its second call of the engine does not wait for what the first one holds."""

    async def go() -> None:
        room = Room(10)
        own = Lease(room, stays)
        await own.acquire(10, nothing)
        await asyncio.wait_for(own.acquire(10, nothing), 1)
        own.release()
        own.release()
        assert room.free == 10

    asyncio.run(go())


def answered(
    app: Callable[[Scope, Receive, Send], Awaitable[None]], room: Room, send: Send, kind: str = "http"
) -> None:
    """One request through the middleware."""

    async def receive() -> Message:
        return {"type": "http.request"}

    asyncio.run(AnswerRoom(app, room, lambda _, __: stays)({"type": kind}, receive, send))


def test_an_answer_with_rows_goes_out_in_pieces() -> None:
    """Its room is free once the last was sent, whatever the app does afterwards; other answers go out as they are."""
    room, sent, free = Room(10), list[Message](), list[int]()
    body = bytes(range(256)) * (PIECE_BYTES // 100)

    async def send(message: Message) -> None:
        sent.append(message)

    async def with_rows(_: Scope, __: Receive, send: Send) -> None:
        own = lease.get()
        assert own is not None
        await own.acquire(4, nothing)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        free.append(room.free)
        await send({"type": "http.response.body", "body": body})
        free.append(room.free)

    async def without(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": body})

    answered(with_rows, room, send)
    assert free == [6, 10]
    pieces = [message for message in sent if message["type"] == "http.response.body"]
    assert b"".join(message["body"] for message in pieces) == body
    assert max(len(message["body"]) for message in pieces) == PIECE_BYTES
    assert [message["more_body"] for message in pieces] == [True, True, False]
    sent.clear()
    answered(without, room, send)
    assert sent == [{"type": "http.response.body", "body": body}]


def test_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is cut off, and its room is another's."""
    monkeypatch.setattr("tessera.http.answer_room.PIECE_SECONDS", 0.01)
    room = Room(10)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def app(_: Scope, __: Receive, send: Send) -> None:
        own = lease.get()
        assert own is not None
        await own.acquire(10, nothing)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"rows"})

    with pytest.raises(TimeoutError):
        answered(app, room, send)
    assert room.free == 10
