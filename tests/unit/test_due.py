"""Which running requests have a complete read, against a look at each of them in every step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tessera.rows.due import DueReads

NEED = 5


@dataclass(eq=False)
class Request:
    """Generates tokens, is read from time to time, ends at last."""

    tokens: int = 0
    read: int = 0
    running: bool = True
    looks: int = 0


def tokens_to_next(request: Request) -> int | None:
    """Every fifth token completes something; the first one does already."""
    request.looks += 1
    return NEED * request.read + 1 - request.tokens if request.running else None


@given(
    stride=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=6), st.booleans()),
        max_size=60,
    ),
)
def test_finds_those_that_are_complete_and_no_others(
    stride: int, steps: list[tuple[list[tuple[int, bool, bool]], bool]]
) -> None:
    """In every step; those that stopped for a while are found again once they were added again."""
    due, requests = DueReads(tokens_to_next, stride), [Request() for _ in range(6)]
    for request in requests:
        due.add(request)
    for changes, take in steps:
        for request, (tokens, stops, resumes) in zip(requests, changes, strict=False):
            if request.running:
                request.tokens += min(tokens, stride)
                request.running = not stops
            elif resumes:
                request.running = True
                due.add(request)
        found = due.step()
        expected = [request for request in requests if (tokens_to_next(request) or 0) <= 0 and request.running]
        assert {id(request) for request in found if request.running} == {id(request) for request in expected}
        assert len(found) == len({id(request) for request in found})
        if take:
            taken = due.take()
            assert {id(request) for request in taken} == {id(request) for request in expected}
            for request in taken:
                request.read = 1 + (request.tokens - 1) // NEED


def test_looks_at_few() -> None:
    """Of 64 requests with a token a step: a look at each when it is due, another before it is read, one after."""
    due, requests = DueReads(tokens_to_next, 1), [Request() for _ in range(64)]
    for request in requests:
        due.add(request)
    for _ in range(50):
        for request in requests:
            request.tokens += 1
        due.step()
        for request in due.take():
            request.read = 1 + (request.tokens - 1) // NEED
    assert max(request.looks for request in requests) <= 3 * (50 // NEED + 1)


def test_forgets_what_ended() -> None:
    """A request that ended is not kept, and one that takes its place in memory is found."""
    due = DueReads(tokens_to_next, 1)
    ended = Request(running=False)
    due.add(ended)
    assert due.step() == []
    ended.running = True
    for _ in range(3 * NEED):
        assert due.step() == []
    due.add(ended)
    ended.tokens = 1
    assert due.step() == [ended]
